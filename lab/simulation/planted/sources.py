"""Planted bugs in the readers of sources: the binlog, and the workload catalog's log."""

from __future__ import annotations

from typing import Final

from consumers.owner import tables
from lab.simulation.catalog.run_state import CatalogRunState
from lab.simulation.planted.planting import (
    Begin,
    Replace,
    Return,
    always,
    catalog,
    installation,
    leave_out,
    never,
    rows,
)
from lab.simulation.rows.asking import SourceRead
from lab.simulation.rows.source import SimulatedSource
from lab.workload import events
from lab.workload.events import WorkloadTranslator
from stream.sources.mariadb import position as mariadb_position
from stream.sources.mariadb.backfill.plan import Chunk, Plan
from stream.sources.mariadb.backfill.run import Backfill
from stream.sources.mariadb.binlog.coalesce import TransactionRows
from stream.sources.mariadb.binlog.progress import Progress
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.binlog.reading import row_events
from stream.sources.mariadb.binlog.reading.foreign_keys import ForeignKeys
from stream.sources.mariadb.binlog.reading.logged_statements import LoggedStatements
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.binlog.unlogged import StatementTables
from stream.sources.mariadb.cascades.children import Children
from stream.sources.mariadb.cascades.family import _Search
from stream.sources.mariadb.replicas.following import FollowingSource

REPLICAS: Final = (
    installation(
        "earlier_primary_is_forgotten",
        "of each domain a server counts as its history only what the server that wrote last has written",
        Replace(
            mariadb_position.by_domain_and_server,
            "found[domain, server] = sequence",
            "found = {each: n for each, n in found.items() if each[0] != domain} | {(domain, server): sequence}",
        ),
    ),
    installation(
        "replica_answers_for_its_server",
        "what a replica has is said to be all that its server had when it was asked for the time",
        Replace(
            FollowingSource._look_at_lag,
            "watch.saw(seen)",
            "watch.saw(seen._replace(position=self._sessions.end_of(self.server) or seen.position))",
        ),
    ),
)
BINLOG: Final = (
    rows(
        "second_update_discarded",
        "the first of two updates of a key in a transaction is published",
        Replace(
            TransactionRows.put, "self._images[any_key] = any_image", "self._images.setdefault(any_key, any_image)"
        ),
    ),
    rows(
        "moved_key_keeps_the_old_row",
        "an UPDATE that moves a primary key does not delete the old one",
        never(row_events.decode_rows, "any_old != any_key"),
    ),
    rows(
        "delete_not_published",
        "a deleted row is not published",
        Replace(
            row_events.decode_rows,
            "any_key, any_before, any_at = any_row(any_data, any_at)\nany_put(any_key, None, any_before)",
            "any_key, any_before, any_at = any_row(any_data, any_at)",
        ),
    ),
    rows(
        "cascade_ignored",
        "rows that a foreign key changes without a row event are not voided",
        Begin(
            StatementTables.end,
            "if len(self._seen) > 1 or cascades.on_delete or cascades.on_update:\n    return",
        ),
    ),
    rows(
        "ddl_ignored",
        "DDL voids nothing, and neither does the description that follows it",
        leave_out(LoggedStatements._ddl, "any_transaction.voids.setdefault(...)"),
        leave_out(OpenTransaction.settle, "self.voids.setdefault(...)"),
    ),
    rows(
        "void_before_its_transactions_rows",
        "a transaction's voids are published before its rows",
        Replace(
            OpenTransaction.changes,
            "if not self.voids and not self.described and not self._keyless:\n    return self.rows.changes(_NO_TABLES)",
            "return [*self._tail(catalog)[1], *self.rows.changes(_NO_TABLES)]",
        ),
    ),
    rows(
        "lost_history_not_noticed",
        "the source continues although the history that it published is lost",
        never(mariadb_position.check_in_history, "any_state.get(...) < any_sequence"),
    ),
    rows(
        "lower_sequence_published",
        "a transaction whose sequence is below the last one of its domain is published like any other",
        never(BinlogReader._begin, "not self._position.precedes(...)"),
    ),
    rows(
        "history_checked_by_domain",
        "a server with high enough sequences counts as the same history, whatever its server id",
        Replace(
            mariadb_position.check_in_history,
            "any_state.get((any_domain, any_server), 0)",
            "max((at for (each, _), at in any_state.items() if each == any_domain), default=0)",
        ),
    ),
    rows(
        "description_not_continued",
        "a source does not continue a description of the tables that the one before it has partly published",
        never(Progress.__init__, "self.partial_gtid == self.position"),
        Replace(
            Progress.aligned,
            "replace(any_whole, gtid=any_name, changes=any_voids, table_choice=UNDESCRIBED)",
            "replace(any_whole, changes=any_voids)",
        ),
    ),
)
WORKLOAD: Final = (
    catalog(
        "alloc_trusted_without_open",
        "a COMMIT ends only the write ids that were seen, although its OPEN was not seen",
        always(WorkloadTranslator._ended, "any_known.seen_open"),
        leave_out(events._open_transactions, "any_held.append(...)"),
    ),
    catalog(
        "open_map_not_resumed",
        "a restarted publisher forgets the open transactions and does not look them up",
        Replace(WorkloadTranslator._ended, "tuple(sorted(self._lookup(any_txn)))", "()"),
        Replace(WorkloadTranslator.__init__, "self._open = any_map", "self._open = {}"),
    ),
    catalog(
        "forgotten_ids_are_unknown",
        "the first publication of a list ends at the last id that the cleaner has kept",
        Replace(
            events._list_changes,
            "any_ids.replace(any_hwm, any_open, any_aborted, committed=any_committed)",
            "any_ids.replace(max((int(row[0]) for row in found), default=0), any_open, any_aborted,"
            " committed=any_committed)",
        ),
        Return(tables._has_more_ids, "False"),
    ),
    catalog(
        "collapsed_list_published",
        "the first publication of a list claims that no write id is committed",
        never(events._list_changes, 'bool(any_ids["committed"])'),
    ),
    catalog(
        "only_the_last_alloc",
        "a COMMIT names only the write id that was allocated last",
        Replace(WorkloadTranslator._allocated, "(*any_known.write_ids, any_pair)", "(any_pair,)"),
    ),
    catalog(
        "abort_by_an_older_list",
        "transactions missing in a list of open ones that is older than the log count as aborted",
        Replace(
            WorkloadTranslator.__init__,
            "self._open = any_map",
            "self._open = any_map\nself._listed = set(self._open)",
        ),
        Replace(
            WorkloadTranslator._changes,
            "return [AllocateWriteId(any_table, any_txn, any_id)]",
            "gone = () if any_txn in self._listed else (AbortTransaction(any_txn, ((any_table, any_id),), True),)\n"
            "return [AllocateWriteId(any_table, any_txn, any_id), *gone]",
        ),
    ),
)
BACKFILL: Final = (
    rows(
        "changed_rows_in_a_chunk",
        "a chunk brings back rows that changed after it was read",
        always(Plan.unchanged, "any_row.key not in self._changed"),
    ),
    rows(
        "chunk_published_early",
        "a chunk is published before the source has read as far as it may reach",
        always(Backfill.step, "binlog.has_reached(any_chunk.hi)"),
    ),
    rows(
        "chunk_from_before_the_noting",
        "a chunk that may lack changes from before keys were noted is published",
        always(Chunk.follows, "self.lo.covers(since)"),
    ),
    rows(
        "chunk_outlives_a_void",
        "a chunk that was read before DDL is published after it",
        Replace(
            Plan._notice_tables,
            "if self.table in any_lost:\n    self.put_aside()\n"
            "for any_table in any_lost & self.cursors.keys():\n    ...",
            "if EVERY_TABLE in names:\n    self.put_aside()\n"
            "for table in lost & self.cursors.keys() - {self.table}:\n    del self.cursors[table]",
        ),
    ),
    rows(
        "complete_before_the_last_chunk",
        "a backfill is called complete with its first chunk",
        Replace(
            Plan.publish,
            "if any_chunk.last is None:\n    any_pieces.append(...)",
            "pieces.append([BackfillTable(self.table, complete=True)])",
        ),
    ),
    rows(
        "cursor_ahead_of_its_rows",
        "a source that dies between the cursor and the rows before it goes on behind them",
        Replace(
            Backfill.step,
            "for any_transaction in self._plan.publish(...):\n    self._publisher.publish(any_transaction)\n"
            "self._annotate()",
            "ahead = [*self._plan.publish(chunk, position, timestamp)]\n"
            "self._annotate()\n"
            "for transaction in ahead:\n    self._publisher.publish(transaction)",
        ),
    ),
)
CASCADES: Final = (
    rows(
        "cascaded_row_not_void",
        "a row that a foreign key deleted is found, and not voided",
        leave_out(ForeignKeys._void_rows, "any_transaction.rows.void(any_key)"),
    ),
    rows(
        "cascade_by_half_a_table",
        "a table whose rows are being read counts as known",
        Replace(
            _Search._is_known,
            "self._family.children.knowledge(any_table) is Knowledge.ALL",
            "self._family.children.knowledge(table) is not Knowledge.NOTHING",
        ),
        never(Children.referring, "known.knowledge is not Knowledge.ALL"),
    ),
)
BUGS: Final = (*REPLICAS, *BINLOG, *BACKFILL, *CASCADES, *WORKLOAD)
WRONG_SOURCES: Final = (
    rows(
        "binlog_end_as_token",
        "a read of the source uses the binlog's end as the position of the row",
        Replace(SimulatedSource.read, "any_history.positions[index]", "any_history.positions[-1]"),
    ),
    rows(
        "token_after_fetch",
        "a read of the source determines the position after the row",
        Replace(SourceRead.rows, "any_snapshot.position, any_snapshot.position", "hi, hi"),
    ),
    catalog(
        "list_after_fetch",
        "a read of the metastore takes list and position from the primary, and the image from a replica",
        Replace(
            CatalogRunState.read_metastore,
            "text = store.list_of(table, own) if any_managed else any_none",
            "position = Position.parse(position_of(self.store.end))\n"
            "table = self.store.by_id[table.table_id]\n"
            'text = self.store.list_of(table, own) if table.kind == "transactional" else ""',
        ),
    ),
    catalog(
        "own_write_for_everybody",
        "a reader gets the staged write of another open transaction",
        always(CatalogRunState.read_metastore, "any_table.staged is not None and any_table.staged[0] == any_own"),
    ),
)
"""Sources that answer wrongly: they change the models, not the product, so they are no planted bugs.

They show that the checkers find out a source that breaks what is asked of it (docs/concepts/guarantees.md): its
position belongs to its snapshot, and nobody gets what another one has not committed.
"""
