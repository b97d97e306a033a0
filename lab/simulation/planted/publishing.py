"""Planted bugs in `stream.wire` and `stream.publish`: batches, markers, and resuming a publisher."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import (
    Begin,
    Replace,
    Return,
    always,
    catalog,
    installation,
    leave_out,
    rows,
)
from stream.publish import resume
from stream.publish.publisher import Publisher
from stream.wire.batch import Framer

MARKERS: Final = (
    rows(
        "marker_inside_a_transaction",
        "a marker names the position of a transaction that is only partly published",
        Replace(Framer._marker, "any_at.position", "any_at.partial_gtid or any_at.position"),
    ),
    rows(
        "marker_always_whole",
        "the marker of a batch that ends inside a transaction claims a transaction boundary",
        always(Framer._marker, "not any_at.partial_gtid"),
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
    ),
)
BUGS: Final = (*MARKERS, *ROUTES, *RESUMING)
