"""Planted bugs that the world of catalog tables must catch."""

from __future__ import annotations

from typing import Final

from consumers.fold import catalog as catalog_fold
from consumers.fold.catalog_state import TableState
from consumers.owner import answering
from consumers.owner import tables as catalog_reading
from lab.simulation.catalog.reading import ReadingOps
from lab.simulation.catalog.slips import SLIPS
from lab.simulation.mutations import Edit, Mutation
from lab.workload import events
from lab.workload.events import WorkloadTranslator
from stream.wire.batch import Framer
from tokens import decision
from tokens.writeid_state import WriteIds


def _catalog(name: str, what: str, *edits: Edit) -> Mutation:
    return Mutation(name, what, "catalog", edits)


MUTATIONS: Final = (
    *SLIPS,
    _catalog(
        "compare_instead_of_covers",
        "a list is fresh if Hive's compare calls it newer: only the smallest id that differs counts",
        Edit(
            decision._judge_list,
            "missing = tagged.missing(wanted)",
            'missing = None if __import__("tokens").hive_compare(tagged, wanted) >= 0 else tagged.missing(wanted)',
        ),
    ),
    _catalog(
        "demand_stored_as_tag",
        "a fill is stamped with the list of the reader who asked",
        Edit(
            catalog_reading.read_fill,
            "ValidWriteIdList.parse(fill.write_ids) if listed else None",
            "demand.write_ids if listed else None",
        ),
        Edit(
            catalog_reading._list_of,
            "if state.kind != TRANSACTIONAL or not state.ids.known:",
            "if state.kind != TRANSACTIONAL:",
        ),
    ),
    _catalog(
        "hwm_is_enough",
        "a list is covered if its high-water mark is reached",
        Edit(
            decision._judge_list,
            "missing = tagged.missing(wanted)",
            "missing = None if tagged.hwm >= wanted.hwm else tagged.missing(wanted)",
        ),
    ),
    _catalog(
        "pending_writer_ignored",
        "a table is servable although a transaction that wrote it is open",
        Edit(TableState.waits_for, "if self.pending:", "if False:"),
    ),
    _catalog(
        "staged_write_is_the_table",
        "a write that its ABORT will undo takes the committed image's place",
        Edit(catalog_fold._fold_image, 'event["staged"] and event["txn"]', "False"),
    ),
    _catalog(
        "staged_write_survives_abort",
        "an ABORT promotes what was staged",
        Edit(catalog_fold._end_in_table, "        if committed:\n", "        if True:\n"),
    ),
    _catalog(
        "commit_promotes_nothing",
        "a COMMIT leaves the table as it was before",
        Edit(catalog_fold._end_in_table, "        if committed:\n", "        if False:\n"),
    ),
    _catalog(
        "commit_leaves_the_id_open",
        "a COMMIT does not take its write id out of the open ones",
        Edit(WriteIds.commit, "self._drop_open(write_id)", "pass"),
    ),
    _catalog(
        "abort_counts_as_commit",
        "an aborted write id is taken out of the exceptions",
        Edit(WriteIds.abort, "insort(self.aborted, write_id)", "pass"),
    ),
    _catalog(
        "allocated_is_valid",
        "an allocated write id counts as valid before its COMMIT",
        Edit(WriteIds.allocate, "    insort(self.open, (write_id, txn))\n", ""),
    ),
    _catalog(
        "alloc_trusted_without_open",
        "a COMMIT's write ids are those seen, although its OPEN was not",
        Edit(WorkloadTranslator._ended, "known.seen_open", "known.write_ids is not None"),
        Edit(events._open_transactions, "held.append(", "held.count("),
    ),
    _catalog(
        "open_map_not_resumed",
        "a restarted publisher forgets which transactions are open, and asks nobody",
        Edit(WorkloadTranslator._ended, "return tuple(sorted(self._lookup(txn)))", "return ()"),
        Edit(WorkloadTranslator.__init__, "{known.txn: known for known in open_transactions}", "{}"),
    ),
    _catalog(
        "commit_to_one_partition",
        "a COMMIT goes to the shard's home partition only",
        Edit(Framer._touched, "return sorted({", "return [self._home] or sorted({"),
    ),
    _catalog(
        "binding_to_one_partition",
        "a name is bound in one partition only",
        Edit(
            Framer._route,
            "case VoidTable() | DescribeTable() | BindName():",
            "case BindName():\n            return (self._home,)\n        case VoidTable() | DescribeTable():",
        ),
    ),
    _catalog(
        "duplicate_event_counts",
        "an event that was folded before is folded once more",
        Edit(catalog_fold._load, '(event["epoch"], event["ordinal"]) > (state.epoch, state.ordinal)', "True"),
    ),
    _catalog(
        "rename_keeps_the_old_name",
        "a renamed table answers to the name that it had",
        Edit(catalog_fold._fold_binding, "        state.name = name\n", ""),
    ),
    _catalog(
        "recreated_table_by_name",
        "a table is found by its name, whatever id was asked for",
        Edit(
            answering.answer_table,
            "state_bytes = store.get(table_key(table_id))",
            "table_id = bound or table_id\n    state_bytes = store.get(table_key(table_id))",
        ),
        Edit(decision.decide, "if demand.table_id and demand.table_id != tag.table_id:", "if False:"),
    ),
    _catalog(
        "list_and_id_not_required",
        "a transactional table is answered to a demand without its id",
        Edit(catalog_reading.require_write_ids, "if kind != TRANSACTIONAL or", "if True or"),
        Edit(decision.decide, "if demand.table_id and demand.table_id != tag.table_id:", "if False:"),
    ),
    _catalog(
        "image_without_its_write",
        "a write that was published is folded with the image before it",
        Edit(
            catalog_fold._take_write,
            'if event["image"] is not None:',
            'if state.image is None and event["image"] is not None:',
        ),
        Edit(
            catalog_fold._take_write,
            'state.write_ordinal, state.write_position = event["ordinal"], event["gtid"]',
            "pass",
        ),
    ),
    _catalog(
        "forgotten_ids_are_unknown",
        "a catalog that is first published ends its list at the last id that is remembered",
        Edit(
            events._list_changes,
            "ids.replace(hwm,",
            "ids.replace(max((int(row[0]) for row in found), default=0),",
        ),
    ),
    _catalog(
        "own_write_for_everybody",
        "a reader gets what another open transaction has staged",
        Edit(ReadingOps._landed, "mine = table.staged is not None and table.staged[0] == own", "mine = True"),
    ),
    _catalog(
        "external_table_needs_no_position",
        "an external table is fresh for whoever asks",
        Edit(catalog_reading._bearing, "return Demand(vector=demand.vector,", "return Demand("),
        Edit(decision._judge_vector, "if by_mark is Order.NEWER or by_mark is Order.SAME:", "if by_mark is not None:"),
    ),
)
