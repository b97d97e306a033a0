"""More planted bugs that the world of rows must catch: slips of one end, one side, one half of a rule."""

from __future__ import annotations

from typing import Final

from consumers.fold import messages as fold
from consumers.fold import rows as row_fold
from consumers.owner import answering
from consumers.owner import rows as reading
from consumers.store import store
from lab.simulation.mutations import Edit, Mutation
from serving.client import client
from serving.reads import proof, rows, spaces
from stream.publish import resume
from stream.sources.mariadb import position as mariadb_position
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.wire.batch import Framer
from tokens import decision
from tokens.mariadb import MariadbPosition
from tokens.vector import Vector


def _rows(name: str, what: str, *edits: Edit) -> Mutation:
    return Mutation(name, what, "rows", edits)


FILLS: Final = (
    _rows(
        "stamp_without_ordinal",
        "a fill does not remember which event of its key it was made over",
        Edit(
            reading.view_row,
            "Stamp(entry.shard, entry.epoch, entry.ordinal, _all",
            "Stamp(entry.shard, entry.epoch, 0, _all",
        ),
    ),
    _rows(
        "fill_older_than_an_unread_row",
        "a fill may be older than a row that could not be read",
        Edit(reading.may_fill, "elif same_epoch and not position", "elif False and not position"),
    ),
    _rows(
        "fill_older_than_a_void",
        "a fill may be older than the void of its table, while the marker is awaited",
        Edit(reading.may_fill, "if void.epoch == lineage.epoch and not position", "if False and not position"),
    ),
    _rows(
        "low_water_exclusive",
        "a fill at the low-water is refused",
        Edit(
            reading.may_fill,
            "not position.at_or_past(Position.parse(lineage.low_water))",
            'position.order(Position.parse(lineage.low_water)).name != "NEWER"',
        ),
    ),
    _rows(
        "floor_exclusive",
        "a fill at the floor of a void is refused",
        Edit(
            reading.may_fill,
            "void.epoch == lineage.epoch and not position.at_or_past(Position.parse(void.floor))",
            'void.epoch == lineage.epoch and position.order(Position.parse(void.floor)).name != "NEWER"',
        ),
    ),
    _rows(
        "fill_at_the_watermark_refused",
        "a fill at the watermark is refused",
        Edit(
            reading.may_fill,
            "lineage.watermark and not position.at_or_past(Position.parse(lineage.watermark))",
            'lineage.watermark and position.order(Position.parse(lineage.watermark)).name != "NEWER"',
        ),
    ),
    _rows(
        "lo_and_hi_swapped",
        "a fill is judged by what it holds at most, not by what it holds at least",
        Edit(
            answering.answer_row,
            "Position.parse(fill.lo), Position.parse(fill.hi), watermark",
            "Position.parse(fill.hi), Position.parse(fill.lo), watermark",
        ),
    ),
    _rows(
        "session_takes_lo",
        "a session takes away what a fill holds at least, not what it may hold",
        Edit(answering.answer_row, "view._replace(lo=fill.lo, hi=fill.hi,", "view._replace(lo=fill.hi, hi=fill.lo,"),
    ),
    _rows(
        "absence_of_another_spelling",
        "no row under this spelling is kept, and told, as no row at all",
        Edit(rows.may_answer, "(row.image is not None or key.exact)", "True"),
        Edit(answering._refuse_by_schema, "if request.image is None:", "if False:"),
        Edit(rows.may_offer, "own_key and", "True and"),
    ),
    _rows(
        "absence_of_a_text_key",
        "that there is no row is kept for a key that a collation compares",
        Edit(answering._refuse_by_schema, "if request.image is None:", "if False:"),
        Edit(rows.may_offer, "else key.exact", "else True"),
    ),
)
MARKERS: Final = (
    _rows(
        "older_marker_taken",
        "a marker that comes once more sets the watermark back, and ends the wait of a later void",
        Edit(fold._fold_marker, "if ordinal < lineage.watermark_ordinal:", "if False:"),
    ),
    _rows(
        "equal_marker_ignored",
        "a marker after transactions without events does not move the watermark",
        Edit(
            fold._fold_marker,
            "if ordinal < lineage.watermark_ordinal:",
            "if ordinal <= lineage.watermark_ordinal and lineage.watermark:",
        ),
    ),
    _rows(
        "part_ends_voids",
        "the marker of a batch that ends inside a transaction ends the wait of a void",
        Edit(fold._fold_marker, "if at_boundary:", "if True:"),
    ),
    _rows(
        "marker_always_whole",
        "the marker of a batch that ends inside a transaction says that it does not",
        Edit(Framer._marker, '"whole": at_boundary', '"whole": True'),
    ),
    _rows(
        "other_shards_marker_ends_voids",
        "another shard's marker ends the wait of a void",
        Edit(fold._fold_marker, "scope[1] == shard and void.epoch == epoch and", "True and"),
    ),
    _rows(
        "marker_where_something_changed",
        "a partition in which nothing changed gets no marker",
        Edit(Framer.take, "(*values, marker)]", "((*values, marker) if values else ())]"),
    ),
    _rows(
        "watermark_of_another_partition",
        "a watermark counts for every partition of its topic",
        Edit(
            answering.answer_row,
            "view = view_row(head, key, store.get(key))",
            'marks = getattr(partition, "topic", partition).__dict__.setdefault("marks", {})\n'
            "    for name, each in head.lineages.items():\n"
            "        if name not in marks or (each.epoch, each.watermark_ordinal) > marks[name][:2]:\n"
            "            marks[name] = each.epoch, each.watermark_ordinal, each.watermark\n"
            "    view = view_row(head, key, store.get(key))\n"
            "    if view.shard in marks and marks[view.shard][0] == view.epoch:\n"
            "        view = view._replace(watermark=marks[view.shard][2])",
        ),
    ),
    _rows(
        "wait_ends_at_any_watermark",
        "a wait is over as soon as there is a watermark that can be compared",
        Edit(answering.reached, "not in (Order.NEWER, Order.SAME)", "is Order.UNKNOWN"),
    ),
    _rows(
        "wait_ignores_the_epoch",
        "a wait is over when the position is reached in another history",
        Edit(answering.reached, "or lineage.epoch != epoch", ""),
    ),
)
VOIDS: Final = (
    _rows(
        "older_void_replaces",
        "a void that comes once more takes the place of a newer one",
        Edit(
            fold._fold_table_void,
            'if before is None or (event["epoch"], event["ordinal"]) > before[:2]:',
            "if True:",
        ),
    ),
    _rows(
        "poison_void_off_by_one",
        "what a message that cannot be read voids ends one event too early",
        Edit(fold._poison, "Void(lineage.epoch, lineage.ordinal,", "Void(lineage.epoch, lineage.ordinal - 1,"),
    ),
    _rows(
        "bad_key_voids_nothing",
        "a row whose key cannot be read is a dead letter and nothing else",
        Edit(
            row_fold._settle_by_key,
            '            voids[EVERY_TABLE, shard] = Void(epoch, max(lineage.ordinal, ordinal), "")\n',
            "",
        ),
    ),
    _rows(
        "bad_key_voids_what_was_before_its_frame",
        "a row whose key cannot be read does not void the rows before it in its frame",
        Edit(row_fold._settle_by_key, "max(lineage.ordinal, ordinal)", "lineage.ordinal"),
    ),
    _rows(
        "event_sets_ordinal_back",
        "an event that comes once more sets back which ordinal was folded last, and with it what a void covers",
        Edit(fold._fold_one, "max(lineage.ordinal, ordinal)", "ordinal"),
    ),
    _rows(
        "void_before_its_transactions_rows",
        "a transaction's voids are published before its rows",
        Edit(
            BinlogReader._changes,
            "transaction.rows.changes(voided, tail)",
            "[*tail, *transaction.rows.changes(frozenset(), ())]",
        ),
    ),
    _rows(
        "delete_not_published",
        "a deleted row is not published",
        Edit(
            BinlogReader._decode,
            "key, at = decoder.key(data, at)\n            put(key, None)",
            "key, at = decoder.key(data, at)",
        ),
    ),
)
EPOCHS: Final = (
    _rows(
        "later_epoch_ignored",
        "a demand of a later epoch is compared with the old one's positions",
        Edit(decision._judge_vector, "if epoch > tag.epoch:", "if False:"),
    ),
    _rows(
        "older_epoch_folded",
        "an event of an epoch that is over is folded",
        Edit(row_fold.lineage_for, "return lineage if epoch == lineage.epoch else None", "return lineage"),
    ),
    _rows(
        "epoch_start_counts_twice",
        "the start of an epoch that comes once more voids anew, with less",
        Edit(
            fold._fold_epoch_start,
            "if head.lineages.get(shard) is not None and head.lineages[shard].epoch == epoch and lineage.ordinal:",
            "if False:",
        ),
    ),
    _rows(
        "history_checked_by_domain",
        "a server that counts as far as was published is taken for the same, whoever wrote it",
        Edit(
            mariadb_position.check_in_history,
            "state.get((domain, server), 0) < sequence",
            "max((at for (each, _), at in state.items() if each == domain), default=0) < sequence",
        ),
    ),
    _rows(
        "merge_keeps_the_older_epoch",
        "of two epochs of a shard a session keeps the older one",
        Edit(Vector.merge, "theirs.epoch > mine.epoch", "theirs.epoch < mine.epoch"),
    ),
    _rows(
        "proof_takes_the_older_epoch",
        "the source's answer is taken to be of the older of the epochs that are known",
        Edit(proof.Proof.__init__, "max(epochs) if", "min(epochs) if"),
    ),
    _rows(
        "proof_ignores_the_sessions_epoch",
        "the source's answer is of the epoch that the front knows, though the session knows a later one",
        Edit(proof.Proof.__init__, "component.epoch if component else None", "None"),
    ),
    _rows(
        "front_goes_back_an_epoch",
        "a front believes an owner that is behind",
        Edit(spaces.Epochs.learn, "epoch > self.known.get(shard, -1)", "True"),
    ),
    _rows(
        "first_write_in_the_fronts_epoch",
        "a session's first write is placed in an epoch that the session knows is over",
        Edit(client.Session._place, "max(known.epoch, seen.epoch) if seen is not None else known.epoch", "known.epoch"),
    ),
    _rows(
        "lost_token_is_the_old_one",
        "409 history_lost comes with the token that was refused",
        Edit(
            proof.history_lost,
            "vector.with_component(shard, epoch, Position.parse(position)) if position else vector.without(shard)",
            "vector",
        ),
    ),
    _rows(
        "lost_token_forgets_other_shards",
        "409 history_lost of one shard forgets what was seen of the others",
        Edit(
            proof.history_lost,
            "vector.with_component(shard, epoch, Position.parse(position)) if position else vector.without(shard)",
            "Vector()",
        ),
    ),
    _rows(
        "lost_token_not_adopted",
        "a session goes on with the token that was refused",
        Edit(client.Session._adopt_lost, "before, after = Vector.parse(demanded), Vector.parse(error.token)", "return"),
    ),
)
POSITIONS: Final = (
    _rows(
        "merge_replaces",
        "of two positions of a shard a session keeps the last, not both",
        Edit(Vector.merge, "mine.position.join(theirs.position)", "theirs.position"),
    ),
    _rows(
        "join_takes_the_smaller",
        "positions are joined by the smaller sequence",
        Edit(MariadbPosition.join, "mine[1] < theirs[1]", "mine[1] > theirs[1]"),
    ),
    _rows(
        "join_forgets_domains",
        "a domain that only the second position has is forgotten",
        Edit(MariadbPosition.join, "if mine is None or mine[1]", "if mine is not None and mine[1]"),
        Edit(
            MariadbPosition.join, "elif mine[1] == theirs[1] and", "elif mine is not None and mine[1] == theirs[1] and"
        ),
    ),
    _rows(
        "order_by_common_domains",
        "positions are compared by the domains that both have",
        Edit(MariadbPosition.order, "if common < len(theirs):", "if False:"),
    ),
    _rows(
        "value_at_the_demand_is_stale",
        "a value of just the position that is demanded is not fresh",
        Edit(
            decision._judge_vector,
            "if by_value is Order.NEWER or by_value is Order.SAME:",
            "if by_value is Order.NEWER:",
        ),
    ),
    _rows(
        "watermark_at_the_demand_is_stale",
        "a watermark of just the position that is demanded is not enough",
        Edit(
            decision._judge_vector, "if by_mark is Order.NEWER or by_mark is Order.SAME:", "if by_mark is Order.NEWER:"
        ),
    ),
    _rows(
        "unknown_is_servable",
        "what is not known to be stale is served",
        Edit(
            reading.is_servable,
            "freshness in (Freshness.FRESH, Freshness.EVENTUAL)",
            "freshness is not Freshness.STALE",
        ),
    ),
    _rows(
        "unplaced_write_forgotten",
        "a session's first write is forgotten when its shard's epoch is learnt",
        Edit(
            client.Session._place,
            "self._vector = self._vector.merge(Vector({shard: (epoch, unplaced[1])}))",
            "pass",
        ),
    ),
    _rows(
        "source_is_where_it_is_wanted",
        "the source is taken to have reached whatever is demanded",
        Edit(proof.judge, "watermark=None", "watermark=proof.wanted"),
    ),
)
STATES: Final = (
    _rows(
        "resume_from_the_last_but_one",
        "a restarted publisher goes on from the state record before the last",
        Edit(
            resume.resume_point, "_since_snapshot(list(states))", "_since_snapshot(list(states)[:-1] or list(states))"
        ),
    ),
    _rows(
        "frozen_not_looked_up",
        "what is being committed cannot be looked up meanwhile",
        Edit(
            store.PartitionStore.get,
            "    value = self._frozen.get(key)\n        if value is None:",
            "    value = None\n        if value is None:",
        ),
    ),
    _rows(
        "head_not_published",
        "what is folded becomes visible, and the head that covers it does not",
        Edit(
            store.PartitionStore.fold,
            "self.visible = _copy(head)",
            "self.visible = _copy(head) if dead else self.visible",
        ),
    ),
)
SLIPS: Final = (*FILLS, *MARKERS, *VOIDS, *EPOCHS, *POSITIONS, *STATES)
