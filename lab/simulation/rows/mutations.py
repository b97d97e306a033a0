"""Planted bugs that the world of rows must catch."""

from __future__ import annotations

from typing import Final

from consumers.fold import messages as fold
from consumers.fold import rows as row_fold
from consumers.owner import answering
from consumers.owner import rows as reading
from consumers.owner.overlay import Overlay
from consumers.store import store
from lab.simulation.mutations import Edit, Mutation
from lab.simulation.rows import asking
from lab.simulation.rows.slips import SLIPS
from lab.simulation.rows.source import Source
from serving.client import client
from serving.reads import proof, rows
from stream.publish import resume
from stream.publish.publisher import Publisher
from stream.sources.mariadb import position as mariadb_position
from stream.sources.mariadb.binlog.coalesce import TransactionRows
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.binlog.silent import StatementTables
from stream.wire.batch import Framer
from tokens import decision
from tokens.mariadb import MariadbPosition
from tokens.vector import Vector


def _rows(name: str, what: str, *edits: Edit) -> Mutation:
    return Mutation(name, what, "rows", edits)


MUTATIONS: Final = (
    *SLIPS,
    _rows(
        "binlog_end_as_token",
        "a read of the source takes the binlog's end for the position of what it read",
        Edit(Source.read, "history.positions[index]", "history.positions[-1]"),
    ),
    _rows(
        "token_after_fetch",
        "a read of the source takes its position after the row",
        Edit(asking.position_of, "snapshot.position", "snapshot.now()"),
    ),
    _rows(
        "offset_outside_the_batch",
        "the offset that is written is the one folded by then, not the entries' own",
        Edit(
            store.PartitionStore._write_frozen,
            "frozen = self._frozen\n",
            "frozen = {**self._frozen, **head_entries(self.state.head)}\n",
        ),
    ),
    _rows(
        "offset_not_written",
        "a commit writes no offset: after a crash the tail is not the tail",
        Edit(store.PartitionStore.freeze, "active.update(head_entries(head))", "head_entries(head)"),
    ),
    _rows(
        "marker_inside_a_transaction",
        "a marker names the position of a transaction that is partly out",
        Edit(Framer._marker, '"position": at.position', '"position": at.partial_gtid or at.position'),
    ),
    _rows(
        "watermark_without_marker",
        "rows move the watermark",
        Edit(
            row_fold.fold_rows,
            "lineage._replace(ordinal=last)",
            "lineage._replace(ordinal=last, watermark=positions[-1])",
        ),
        Edit(
            row_fold.fold_singles,
            "lineage._replace(ordinal=last)",
            "lineage._replace(ordinal=last, watermark=gtid.decode())",
        ),
    ),
    _rows(
        "timestamps_order",
        "two events of one key are ordered by their timestamps",
        Edit(
            row_fold._settle,
            "(new.epoch, new.ordinal) > (old.epoch, old.ordinal)",
            "(new.epoch, new.timestamp) > (old.epoch, old.timestamp)",
        ),
    ),
    _rows(
        "gtids_order",
        "two events of one shard are ordered by their GTIDs as sets",
        Edit(
            row_fold._settle,
            "if old.shard == new.shard:",
            "if old.shard == new.shard and Position.parse(new.position).order(Position.parse(old.position))"
            " is not Order.UNKNOWN:",
        ),
        Edit(row_fold.fold_rows, "tags = _row_tags(frame, positions)", 'tags = _row_tags(frame, frame["gtids"])'),
    ),
    _rows(
        "second_update_discarded",
        "of two updates of a key in one transaction the first one is published",
        Edit(TransactionRows.put, "self._images[key] = image", "self._images.setdefault(key, image)"),
    ),
    _rows(
        "moved_key_keeps_the_old_row",
        "an UPDATE that moves a primary key does not delete the old one",
        Edit(BinlogReader._decode, "if old != key:\n", "if False:\n"),
    ),
    _rows(
        "cascade_ignored",
        "rows that a foreign key changes without a word are not voided",
        Edit(StatementTables.end, "elif seen:\n", "elif False:\n"),
    ),
    _rows(
        "ddl_ignored",
        "DDL voids nothing",
        Edit(
            BinlogReader._ddl,
            "transaction.voids.setdefault(described.table, statement.reason)",
            "described.table",
        ),
    ),
    _rows(
        "void_not_met",
        "a table's void is not looked at when reading",
        Edit(reading.view_row, "(entry.epoch, entry.ordinal) <= (void.epoch, void.ordinal)", "False"),
    ),
    _rows(
        "void_off_by_one",
        "a void covers only what is older than the event before it",
        Edit(
            reading.view_row,
            "(entry.epoch, entry.ordinal) <= (void.epoch, void.ordinal)",
            "(entry.epoch, entry.ordinal + 2) <= (void.epoch, void.ordinal)",
        ),
    ),
    _rows(
        "void_in_one_partition",
        "a table's void goes to the shard's home partition only",
        Edit(
            Framer._route,
            "case VoidTable() | DescribeTable() | BindName():",
            "case VoidTable():\n            return (self._home,)\n        case DescribeTable() | BindName():",
        ),
    ),
    _rows(
        "poison_voids_nothing",
        "a message that cannot be read is a dead letter and nothing else",
        Edit(fold._poison, "return Changes(after, {}, {}, voids,", "return Changes(after, {}, {}, {},"),
    ),
    _rows(
        "bad_row_voids_nothing",
        "a row whose operation cannot be read is skipped",
        Edit(row_fold._settle_by_key, "            operation = VOID\n", "            continue\n"),
    ),
    _rows(
        "fill_survives_a_change",
        "a fill answers on although its key was changed",
        Edit(Overlay.get, "if fill.stamp != stamp:", "if False:"),
    ),
    _rows(
        "fill_survives_a_void",
        "a fill answers on although its table was voided",
        Edit(
            reading.view_row,
            "Stamp(entry.shard, entry.epoch, entry.ordinal, _all_voids(head, table))",
            "Stamp(entry.shard, entry.epoch, entry.ordinal, ())",
        ),
        Edit(reading.view_row, "Stamp(shard, epoch, 0, _all_voids(head, table))", "Stamp(shard, epoch, 0, ())"),
    ),
    _rows(
        "fill_without_cas",
        "a fill is kept although its key changed since the look-up",
        Edit(answering.fill_row, "if view.stamp != request.stamp:", "if False:"),
        Edit(reading.may_fill, "if same_epoch and not position", "if False and not position"),
    ),
    _rows(
        "fill_older_than_the_tombstone",
        "a lagging replica's answer stands over a tombstone that is newer",
        Edit(reading.may_fill, "if same_epoch and not position", "if False and not position"),
        Edit(reading.may_fill, "if void.epoch == lineage.epoch and not position", "if False and not position"),
        Edit(reading.may_fill, "if lineage.watermark and not position", "if False and not position"),
    ),
    _rows(
        "fill_below_the_floor",
        "a fill may be older than the void of its table",
        Edit(reading.may_fill, "if void.epoch == lineage.epoch and not position", "if False and not position"),
        Edit(reading.may_fill, "if lineage.watermark and not position", "if False and not position"),
    ),
    _rows(
        "fill_before_the_marker",
        "a fill does not wait for the marker that follows a void",
        Edit(reading.may_fill, "if not void.floor:", "if False:"),
        Edit(
            reading.may_fill,
            "if void.epoch == lineage.epoch and not position",
            "if void.floor and void.epoch == lineage.epoch and not position",
        ),
        Edit(reading._all_voids, "tuple(void for", 'tuple(void._replace(floor="") for'),
    ),
    _rows(
        "fill_of_another_shard",
        "the front offers a fill where the owner takes the key for another shard's",
        Edit(rows.may_offer, "row.shard == shard", "True"),
    ),
    _rows(
        "fill_of_another_spelling",
        "a row found by a collation is kept under the key that was asked for",
        Edit(rows.may_offer, "own_key and", "True and"),
        Edit(answering._refuse_by_schema, "if request.image is None:", "if False:"),
    ),
    _rows(
        "newer_fill_replaced_by_older",
        "a late fill takes the place of a newer one, and says more than it knows",
        Edit(answering.fill_row, 'return False, f"a fill of', 'request.lo = before.lo if True else f"a fill of'),
    ),
    _rows(
        "session_token_is_scalar",
        "the session's token names one shard: the last one read",
        Edit(Vector.merge, "merged = dict(self._components)", "merged = {}"),
    ),
    _rows(
        "session_goes_back",
        "a session adopts the last answer's token instead of merging it",
        Edit(client.Session.adopt, "self._vector.merge(Vector.parse(token))", "Vector.parse(token)"),
        Edit(rows.advanced, "vector.merge(Vector(", "(Vector("),
    ),
    _rows(
        "own_write_not_observed",
        "a session's own commit does not enter its vector",
        Edit(
            client.Session.observe,
            "self._vector = self._vector.merge(Vector({shard: (known.epoch, found)}))",
            "self._vector = self._vector",
        ),
    ),
    _rows(
        "epochs_not_compared",
        "a session's position of a lost history is compared with the new one's",
        Edit(decision._judge_vector, "if epoch < tag.epoch:", "if False:"),
    ),
    _rows(
        "lost_history_not_noticed",
        "the source goes on although what it had published is lost",
        Edit(mariadb_position.check_in_history, "if state.get((domain, server), 0) < sequence:", "if False:"),
    ),
    _rows(
        "epoch_voids_nothing",
        "a new epoch leaves the entries of the one before",
        Edit(fold._fold_epoch_start, "if shard in head.lineages:", "if False:"),
        Edit(row_fold.epoch_voids, "if lineage is None or epoch <= lineage.epoch:", "if True:"),
    ),
    _rows(
        "epoch_of_the_head",
        "an entry of a new epoch is called of the old one while its head is not visible",
        Edit(reading.view_row, "max(found.epoch, entry.epoch) if found", "found.epoch if found"),
    ),
    _rows(
        "source_needs_no_proof",
        "whatever the source says is given, however far it lags",
        Edit(proof.judge, "freshness in _PROVED", "True"),
    ),
    _rows(
        "watermark_before_value",
        "an owner takes the watermark after the entry",
        Edit(
            answering.answer_row,
            "head = store.visible\n    view = view_row(head, key, store.get(key))",
            "value = store.get(key)\n    head = store.visible\n    view = view_row(head, key, value)",
        ),
    ),
    _rows(
        "stale_is_fresh",
        "a position that is older than the demand is taken for fresh",
        Edit(
            decision._judge_vector,
            "if by_mark is Order.NEWER or by_mark is Order.SAME:",
            "if by_mark is not Order.UNKNOWN:",
        ),
    ),
    _rows(
        "unknown_is_fresh",
        "positions that cannot be compared are taken for fresh",
        Edit(
            decision._judge_vector,
            "if by_value is Order.NEWER or by_value is Order.SAME:",
            "if by_value is not Order.OLDER:",
        ),
    ),
    _rows(
        "watermark_ignored",
        "only the entry's own position can prove a demand",
        Edit(
            decision._judge_vector,
            "if by_mark is Order.NEWER or by_mark is Order.SAME:",
            "if False:",
        ),
    ),
    _rows(
        "position_by_one_domain",
        "positions of several domains are compared by the first domain that differs",
        Edit(MariadbPosition.order, "if ahead and behind:", "if False:"),
    ),
    _rows(
        "duplicates_win",
        "an event that was folded before is folded once more",
        Edit(row_fold._settle, "(new.epoch, new.ordinal) > (old.epoch, old.ordinal)", "True"),
    ),
    _rows(
        "resume_forgets_the_part",
        "a restarted publisher publishes the whole of a transaction that was partly out",
        Edit(resume.resume_point, 'partial_gtid=last["partial_gtid"]', 'partial_gtid=""'),
        Edit(resume.resume_point, 'partial_events=last["partial_events"]', "partial_events=0"),
    ),
    _rows(
        "resume_skips_too_much",
        "a restarted publisher takes the transaction that was partly out for published",
        Edit(Publisher._already_out, "min(out, len(txn.changes))", "len(txn.changes) if out else 0"),
    ),
    _rows(
        "resume_counts_anew",
        "a restarted publisher numbers its events from where the batch before ended",
        Edit(resume.resume_point, 'ordinal=last["ordinal"]', 'ordinal=max(1, last["ordinal"] - 1)'),
    ),
    _rows(
        "tombstone_forgotten",
        "a deleted row leaves no tombstone",
        Edit(
            row_fold._checked_entries,
            'entries[key] = _pack_head(operation, ordinal) + tag + (image if operation == VALUE else b"")',
            "if operation == VALUE:\n            entries[key] = _pack_head(operation, ordinal) + tag + image",
        ),
    ),
    _rows(
        "other_shards_entry_replaced",
        "an event whose order to another shard's entry is unknown replaces it",
        Edit(
            row_fold._settle,
            "tag = encode_transaction_tag(",
            "return value\n    tag = encode_transaction_tag(",
        ),
    ),
    _rows(
        "fresh_without_demand",
        "an answer to a request without a token is called fresh",
        Edit(decision.decide, 'Freshness.EVENTUAL, "the request', 'Freshness.FRESH, "the request'),
    ),
    _rows(
        "cache_after_commit_is_empty",
        "a commit forgets what was folded while it was written",
        Edit(store.PartitionStore._write_frozen, "self._frozen = _EMPTY", "self._frozen, self._active = _EMPTY, {}"),
    ),
)
