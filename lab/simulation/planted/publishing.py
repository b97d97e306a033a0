"""Planted bugs in what publishes: batches, markers, resuming a publisher, and the Hive source."""

from __future__ import annotations

from typing import Final

from consumers.owner import tables
from consumers.process.assignment import Assignment
from consumers.process.topic_search import TopicSearch
from lab.simulation.planted.planting import (
    Begin,
    Replace,
    Return,
    always,
    catalog,
    hive,
    installation,
    leave_out,
    never,
    rows,
)
from stream.publish import resume
from stream.publish.publisher import Publisher
from stream.sources.hive.translator import HiveTranslator
from stream.sources.hive.write_id_registry import WriteIdRegistry
from stream.wire.batch import Framer
from stream.wire.records import marker_fields

MARKERS: Final = (
    rows(
        "marker_inside_a_transaction",
        "a marker names the position of a transaction that is only partly published",
        Replace(marker_fields, "any_at.position", "any_at.partial_gtid or any_at.position"),
    ),
    rows(
        "marker_always_whole",
        "the marker of a batch that ends inside a transaction claims a transaction boundary",
        always(marker_fields, "not any_at.partial_gtid"),
    ),
    rows(
        "marker_where_something_changed",
        "a partition in which nothing changed gets no marker",
        Replace(Framer.take, "(*any_values, any_marker)", "(*any_values, any_marker) if any_values else ()"),
    ),
)
ROUTES: Final = (
    rows(
        "void_in_one_partition",
        "a table's void goes to the shard's home partition only",
        Begin(Framer._route, "if isinstance(change, VoidTable):\n    return (self._home,)"),
    ),
    catalog(
        "binding_to_one_partition",
        "a name is bound in one partition only",
        Begin(Framer._route, "if isinstance(change, BindName):\n    return (self._home,)"),
    ),
    catalog(
        "commit_to_one_partition",
        "a COMMIT goes to the shard's home partition only",
        Return(Framer._touched, "[self._home]"),
    ),
)
RESUMING: Final = (
    installation(
        "nobodys_partition_stays_so",
        "a partition that the group has assigned to nobody is left to it",
        leave_out(TopicSearch._assign_what_nobody_has, "if any_stuck: ..."),
        # A member that hands over writes nothing in the callback, so it hardly ever dies there.
        Replace(Assignment._on_revoke, "any_one.ready and not any_one.is_paused and not any_one.lost", "False"),
    ),
    installation(
        "replaced_topic_unnoticed",
        "a source goes on in a topic that was deleted and made anew under it",
        leave_out(Publisher._commit_next, "self._check_topic(any_now)"),
    ),
    installation(
        "hanging_transaction_left",
        "a source waits for a transaction of its own that nobody will end",
        leave_out(Publisher.open, "self._end_hanging()"),
    ),
    installation(
        "epochs_counted_from_the_topic",
        "the first epoch of a topic has the number 1, also after another topic of that name",
        Return(Publisher._next_epoch, "last + 1"),
    ),
    rows(
        "resume_forgets_the_part",
        "a restarted publisher publishes a partly published transaction again from its start",
        Replace(resume.resume_point, 'any_state["partial_gtid"]', '""'),
        Replace(resume.resume_point, 'any_state["partial_events"]', "0"),
    ),
    rows(
        "resume_skips_too_much",
        "a restarted publisher skips the rest of a partly published transaction",
        Replace(Publisher._already_out, "min(any_out, len(any_changes))", "len(any_changes) if any_out else 0"),
    ),
    rows(
        "resume_counts_anew",
        "a restarted publisher reuses the last ordinal",
        Replace(resume.resume_point, 'any_state["ordinal"]', 'max(1, any_state["ordinal"] - 1)'),
    ),
    rows(
        "resume_from_the_last_but_one",
        "a restarted publisher resumes from the state record before the last",
        Replace(
            resume.resume_point,
            "_since_snapshot(list(any_states))",
            "_since_snapshot(list(any_states)[:-1] or list(any_states))",
        ),
    ),
    catalog(
        "opened_delta_lost",
        "the map of open transactions is never published as deltas",
        Replace(Framer._state, "any_known if any_whole else self._opened", "any_known if any_whole else {}"),
        Return(tables._has_more_ids, "False"),  # else a fill beside the entry makes up for it
    ),
)
METASTORE: Final = (
    hive(
        "rename_may_be_unreadable",
        "an ALTER_TABLE that cannot be read voids the table of its columns only, and may have renamed another",
        Replace(HiveTranslator._unreadable, "any_event.table_name if ... else ''", "any_event.table_name"),
    ),
    hive(
        "unseen_rename_keeps_both_names",
        "a table that is shown with another name than before keeps the old one too",
        Replace(
            HiveTranslator._rebind,
            "BindName(table.name, table.table_id, any_before)",
            "BindName(table.name, table.table_id)",
        ),
    ),
    hive(
        "gap_is_passed_over",
        "events that are missing from the log void nothing",
        Replace(HiveTranslator._gap, "[VoidTable(...)]", "[]"),
    ),
    hive(
        "unreadable_event_is_passed_over",
        "an event that cannot be read voids nothing",
        Return(HiveTranslator._unreadable, "[]"),
    ),
    hive(
        "repeated_event_counts_again",
        "an event that was captured twice is folded twice",
        never(HiveTranslator.translate, "any_last is not None and any_event.event_id <= any_last"),
    ),
    hive(
        "rename_leaves_the_ids",
        "a rename leaves the write ids under the old name",
        Replace(
            HiveTranslator._rename,
            "after.transactional and self._ids.rename(before.name, after.name)",
            "after.transactional",
        ),
    ),
    hive(
        "reallocated_id_stays_open",
        "the id that a reallocation replaced stays open",
        Replace(WriteIdRegistry.allocate, "any(...)", "False"),
    ),
    hive(
        "conversion_seeds_nothing",
        "a conversion to full ACID leaves the high-water mark where it was",
        Return(WriteIdRegistry.seed, "False"),
    ),
    hive(
        "dropped_ids_are_kept",
        "a table that is created again has the write ids of the dropped one",
        leave_out(HiveTranslator._forget, "if any_table.kind == 'transactional':\n    ..."),
    ),
    hive(
        "ids_that_another_catalog_takes_stay",
        "a drop in another catalog that takes a table's write ids voids nothing",
        Return(HiveTranslator._elsewhere, "[]"),
    ),
    hive(
        "writer_of_a_part_forgotten",
        "a write that names its write id is not awaited",
        Replace(HiveTranslator._written, "max(write_id, 0)", "0"),
        Replace(
            HiveTranslator._written,
            "TableImage(table.table_id, table.name, any_kind, 'written', any_txn, write_id)",
            "TableImage(table.table_id, table.name, any_kind, 'image')",
        ),
    ),
    hive(
        "image_of_the_table_before",
        "an ALTER_TABLE's image is the table before it",
        Replace(
            HiveTranslator._alter,
            "self._written(any_event, any_after, any_id)",
            "self._written(any_event, before, any_id)",
        ),
    ),
    hive(
        "compared_by_name_only",
        "a table that was created again is taken for the one before it",
        Replace(
            HiveTranslator._rebind,
            "any_known is not None and any_known.table_id == table.table_id",
            "any_known is not None",
        ),
    ),
)
BUGS: Final = (*MARKERS, *ROUTES, *RESUMING, *METASTORE)
