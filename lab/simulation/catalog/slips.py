"""More planted bugs that the world of catalog tables must catch: slips of one end, one side, one half of a rule."""

from __future__ import annotations

from typing import Final

from consumers.fold import catalog as catalog_fold
from consumers.fold.catalog_state import TableState
from consumers.owner import answering
from consumers.owner import tables as catalog_reading
from lab.simulation.catalog.reading import ReadingOps
from lab.simulation.mutations import Edit, Mutation
from lab.workload import events
from lab.workload.events import WorkloadTranslator
from stream.wire.batch import Framer
from tokens import decision
from tokens.writeid_state import WriteIds
from tokens.writeids import ValidWriteIdList


def _catalog(name: str, what: str, *edits: Edit) -> Mutation:
    return Mutation(name, what, "catalog", edits)


LISTS: Final = (
    _catalog(
        "forgotten_aborted_id_is_missing",
        "an id that the tag knows aborted, and the cleaner has forgotten, counts as a write that is missing",
        Edit(ValidWriteIdList.missing, "and write_id not in aborted", ""),
    ),
    _catalog(
        "ids_beyond_the_tag_ignored",
        "ids above the tag's high-water mark are not missing",
        Edit(ValidWriteIdList.missing, "if low <= other.hwm:", "if False:"),
    ),
    _catalog(
        "first_id_beyond_the_tag_ignored",
        "the first id above the tag's high-water mark is not missing",
        Edit(ValidWriteIdList.missing, "low = max(1, self.hwm + 1)", "low = max(1, self.hwm + 2)"),
    ),
    _catalog(
        "open_ids_of_the_tag_ignored",
        "ids that are open in the tag are not missing",
        Edit(ValidWriteIdList.missing, "if previous < write_id <= self.hwm and", "if False and"),
    ),
    _catalog(
        "jump_is_valid",
        "ids that a jump of the high-water mark passes over count as valid",
        Edit(WriteIds._reach, "self.open.extend((between, 0) for between in range(self.hwm + 1, write_id))", "pass"),
    ),
    _catalog(
        "lost_alloc_forgotten",
        "a write that names nobody waits for nobody, though an ALLOC of the table may have been lost",
        Edit(catalog_fold._take_write, "_list_has_gaps(state, voids)", "False"),
    ),
    _catalog(
        "only_the_last_alloc",
        "a COMMIT names the write id of the table that was allocated last",
        Edit(WorkloadTranslator._allocated, "(*known.write_ids, (table_id, write_id))", "((table_id, write_id),)"),
    ),
    _catalog(
        "collapsed_list_published",
        "a catalog that is first published says that none of its write ids is committed",
        Edit(events._list_changes, 'committed=bool(by_state["committed"])', "committed=False"),
    ),
    _catalog(
        "abort_by_an_older_list",
        "transactions that are not in a list of open ones, which is older than the log, are taken for aborted",
        Edit(
            WorkloadTranslator.__init__,
            "{known.txn: known for known in open_transactions}",
            "{known.txn: known for known in open_transactions}\n    self._listed = set(self._open)",
        ),
        Edit(
            WorkloadTranslator._changes,
            'return [AllocateWriteId(table_id, txn, fields["write_id"])]',
            'pair = (table_id, fields["write_id"])\n'
            "            gone = () if txn in self._listed else (AbortTransaction(txn, (pair,), True),)\n"
            '            return [AllocateWriteId(table_id, txn, fields["write_id"]), *gone]',
        ),
    ),
    _catalog(
        "opened_delta_lost",
        "the map of open transactions is told whole, or not at all",
        Edit(Framer._state, "(known if is_snapshot else self._opened)", "(known if is_snapshot else {})"),
    ),
)
TABLES: Final = (
    _catalog(
        "table_id_not_compared",
        "a table is answered for the id of another one",
        Edit(decision.decide, "if demand.table_id and demand.table_id != tag.table_id:", "if False:"),
    ),
    _catalog(
        "older_binding_wins",
        "a name that is bound once more, as before, is bound as before",
        Edit(catalog_fold._bind, "(before.epoch, before.ordinal) >= (bound.epoch, bound.ordinal)", "False"),
    ),
    _catalog(
        "table_void_not_met",
        "a void is not looked at when a table is read",
        Edit(catalog_reading.why_unservable, "if not why and (state.epoch", "if False and (state.epoch"),
    ),
    _catalog(
        "table_void_off_by_one",
        "a void does not cover the event right before it",
        Edit(catalog_reading.why_unservable, "<= (void.epoch, void.ordinal)", "< (void.epoch, void.ordinal)"),
    ),
    _catalog(
        "epoch_does_not_start_anew",
        "a table's state goes on in a new epoch",
        Edit(catalog_fold._load, 'if event["epoch"] > state.epoch:', "if False:"),
    ),
    _catalog(
        "table_watermark_after_its_state",
        "an owner takes the watermark after the table's state",
        Edit(
            answering.answer_table,
            "    head = store.visible\n"
            "    bound = bound_id(partition, name)\n"
            "    state_bytes = store.get(table_key(table_id))\n",
            "    bound = bound_id(partition, name)\n"
            "    state_bytes = store.get(table_key(table_id))\n"
            "    head = store.visible\n",
        ),
    ),
    _catalog(
        "tag_after_fetch",
        "a fill is stamped with list and position as of when it is offered",
        Edit(
            ReadingOps._deliver,
            "accepted, why = answering.fill_table(owned.partition, fill)",
            "table = self.store.by_id[fill.table_id]\n"
            '    fill.write_ids = self.store.list_of(table) if fill.write_ids else ""\n'
            "    fill.lo = fill.hi = position_of(self.store.end)\n"
            "    accepted, why = answering.fill_table(owned.partition, fill)",
        ),
    ),
    _catalog(
        "session_not_asked_of_a_table",
        "a folded table is fresh for whoever has its list, whatever the session has seen",
        Edit(
            catalog_reading.read_table,
            "decide(_bearing(state.kind, demand), tag)",
            "decide(Demand(write_ids=demand.write_ids, table_id=demand.table_id, given=True), tag)",
        ),
    ),
)
WRITERS: Final = (
    _catalog(
        "write_pends_nobody",
        "a write that nothing undoes does not wait for its writer",
        Edit(catalog_fold._take_write, "state.pending = sorted(", "sorted("),
    ),
    _catalog(
        "write_of_nobody_waits_for_nobody",
        "a write that names no transaction waits for none",
        Edit(
            catalog_fold._writers,
            "return tuple((holder, each) for each, holder in state.ids.open)",
            "return ()",
        ),
    ),
    _catalog(
        "abort_leaves_its_writer_pending",
        "a table waits for ever for a transaction that aborted",
        Edit(
            catalog_fold._end_in_table,
            "state.pending = [pair for",
            "state.pending = [pair for pair in state.pending] if not committed else [pair for",
        ),
    ),
    _catalog(
        "second_staged_write_discarded",
        "of two writes of a transaction the first one is promoted",
        Edit(
            catalog_fold._stage,
            'staged.append(StagedImage(txn, event["ordinal"], event["image"]))',
            'staged.append(state.staged_by(txn) or StagedImage(txn, event["ordinal"], event["image"]))',
        ),
    ),
    _catalog(
        "promoted_image_is_of_its_commit",
        "an image that was staged before a void, and committed after it, answers",
        Edit(
            catalog_fold._promote,
            'event["gtid"], event["gtid"], staged.ordinal',
            'event["gtid"], event["gtid"], event["ordinal"]',
        ),
    ),
    _catalog(
        "image_need_not_follow_the_write",
        "the image of before a write answers, while the one that follows is awaited",
        Edit(TableState.waits_for, "if self.image_ordinal < self.write_ordinal:", "if False:"),
    ),
)
SLIPS: Final = (*LISTS, *TABLES, *WRITERS)
