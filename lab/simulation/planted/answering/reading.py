"""Planted bugs between an owner's answer and the session that gets it, and those that only wide histories meet."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import (
    Begin,
    Replace,
    Return,
    installation,
    leave_out,
    never,
    warehouse,
)
from serving.client import transactions, wire
from serving.client.session import SessionState
from serving.client.tracked import TrackedConnection
from serving.client.transactions import TransactionState
from serving.http import batches, lists, query, responses, routes
from serving.reads.lookups.sources import SourceLookups
from serving.reads.objects import ObjectReads
from serving.reads.proof import Proof
from serving.reads.rows import RowReads
from serving.reads.tables import TableReads
from serving.sources import hive_latest, hive_tables
from serving.sources.hive import HiveTables
from stream.sources.key_range import KeyRange
from stream.sources.mariadb import by_range, charsets, connection
from stream.sources.mariadb.binlog.reading.logged_statements import LoggedStatements
from tokens import decision

CACHE_TOKEN: Final = "token_after(demand.token, any_row.shard, any_row.epoch, any_row.hi)"

TOKENS: Final = (
    installation(
        "cache_answer_moves_no_token",
        "an answer of the cache leaves the session's token where it was",
        Replace(RowReads._from_owner, CACHE_TOKEN, "demand.token"),
    ),
    installation(
        "cached_absence_moves_no_token",
        "an absence that the cache proves leaves the session's token where it was",
        Replace(RowReads._from_owner, CACHE_TOKEN, f"{CACHE_TOKEN} if any_row.image is not None else demand.token"),
    ),
    installation(
        "absence_at_the_source_moves_no_token",
        "an absence at the source leaves the session's token where it was",
        Replace(
            SourceLookups._from_source_row,
            "proof.token_after(any_hi)",
            "proof.token_after(any_hi) if found.image is not None else proof.demand.token",
        ),
    ),
    installation(
        "session_ignores_absences",
        "a session does not keep the token of a 404",
        Replace(
            SessionState.plan_row,
            "self._answered(row.token, demanded)",
            "row.found and self._answered(row.token, demanded)",
        ),
    ),
    installation(
        "session_ignores_batches",
        "a session does not keep the token of a batch",
        leave_out(SessionState.plan_rows, "self._answered(token, demanded)"),
    ),
    installation(
        "batch_has_the_last_token",
        "the token of a batch is that of its last element",
        Replace(batches._summary, "vector.merge(any_token)", "any_token"),
    ),
)
TIMES: Final = (
    installation(
        "times_are_not_judged",
        "a time that a read demands counts as proved",
        Replace(decision.decide, "demand.not_before_ms > tag.as_of_ms", "False"),
        Replace(RowReads._from_owner, "row.as_of_ms >= demand.not_before_ms", "True"),
    ),
    warehouse(
        "times_of_a_catalog_are_not_judged",
        "a time that a read of a catalog demands counts as proved",
        Replace(decision.decide, "demand.not_before_ms > tag.as_of_ms", "False"),
        Replace(TableReads._read, "found.as_of_ms < demand.not_before_ms", "False"),
    ),
    installation(
        "source_proves_no_time",
        "an answer of the source proves no time, so it is refused where the cache does not prove it either",
        Return(Proof.as_of, "0"),
    ),
    warehouse(
        "metastore_proves_no_time",
        "an answer of the metastore proves no time",
        Replace(HiveTables.read, "found._replace(as_of_ms=any_time)", "found"),
    ),
    warehouse(
        "bound_of_a_catalog_read_is_dropped",
        "an object may be older than the request allows",
        Replace(ObjectReads._ask_once, "demand.not_before_ms", "0"),
        Replace(ObjectReads.read, "found.as_of_ms < demand.not_before_ms", "False"),
    ),
)
OWN_WRITES: Final = (
    installation(
        "failed_commit_is_forgotten",
        "a commit whose connection broke counts as one that did not take place",
        leave_out(TrackedConnection._call, "if not is_read and self._session is not None: ..."),
    ),
    installation(
        "closed_connection_is_forgotten",
        "a session forgets the unsettled commit of a connection that is closed",
        Replace(
            SessionState._watch,
            "any_known is not any_tracked and not any_known.is_done",
            "any_known is not any_tracked and any_known.open",
        ),
    ),
    installation(
        "unsettled_commit_is_not_asked_for",
        "a session reads on although a commit of its own is unsettled",
        leave_out(SessionState._plan_demand, "any_tracked.require_settled()"),
    ),
)
WIDE: Final = (
    installation(
        "moments_in_the_servers_zone",
        "a session reads moments in the time zone of its server",
        Replace(connection.connect, "SESSION_VARIABLES", "SESSION_VARIABLES.replace(\"time_zone='+00:00', \", '')"),
    ),
    installation(
        "padded_text_is_exact",
        "a text key is called exact although its collation ignores trailing blanks",
        Return(charsets.is_exact_collation, "name.endswith('_bin')"),
    ),
    installation(
        "kept_answer_is_never_old",
        "a reader who holds any answer is told that it is unchanged",
        never(responses.unless_held, "held.strip() != '*' and any_rest"),
    ),
    installation(
        "xa_commit_voids_nothing",
        "the rows of an XA transaction stay as they were before its COMMIT",
        leave_out(LoggedStatements._xa_end, "transaction.voids.setdefault(name, any_why)"),
    ),
)
RANGES: Final = (
    installation(
        "session_forgets_ranges",
        "a session does not keep the token of a range that it has read",
        leave_out(SessionState._plan_range, "self._answered(found.token, demanded)"),
    ),
    installation(
        "page_begins_with_the_row_before",
        "a page from the source repeats the last row of the page before",
        Replace(
            KeyRange.behind,
            "beyond = f'{any_column} > {any_literal}'",
            "beyond = f'{sorted_by} >= {compared}'",
        ),
    ),
    installation(
        "descending_range_ascends",
        "the source gives the first rows for the last ones",
        Replace(by_range._order, "' DESC' if any_wanted.descends(name) else ''", "''"),
    ),
    installation(
        "count_knows_no_limit",
        "the source counts all rows where some were asked for",
        Replace(by_range._count, "not any_wanted.count_max", "True"),
    ),
    installation(
        "bound_of_a_range_is_dropped",
        "a range may be older than the request allows",
        Begin(routes.find_rows, "parameters.max_staleness_ms = msgspec.UNSET"),
    ),
    installation(
        "leading_column_is_dropped",
        "a request that names one row gets the whole table",
        Replace(query.requested_range, "any_parameters.columns", "{}"),
    ),
)
BEGINNINGS: Final = (
    warehouse(
        "lists_know_no_own_transaction",
        "a transaction that begins is told that its own writes are open",
        Replace(hive_tables.read_lists, "each <= hwm and each != txn", "each <= hwm"),
    ),
    warehouse(
        "lists_of_a_later_moment",
        "a transaction's tables are listed as of the moment of the call, not of its list of transactions",
        Replace(hive_tables.read_lists, "metastore.write_ids(names, txns)", "metastore.write_ids(names)"),
    ),
    warehouse(
        "transactions_after_the_readers_own_are_seen",
        "a transaction that begins late sees what transactions after it have committed",
        Replace(hive_tables.read_lists, "min(txn, known.hwm) if txn else known.hwm", "known.hwm"),
    ),
    warehouse(
        "external_table_has_a_list",
        "a table that is not transactional is listed",
        Replace(hive_tables.read_lists, "table is not None and table.transactional", "table is not None"),
    ),
    warehouse(
        "given_transactions_are_dropped",
        "the front forgets which list of transactions a transaction has already",
        Begin(lists.get_lists, "parameters.txns = ''"),
    ),
    warehouse(
        "late_table_is_listed_anew",
        "a table that a transaction had not named is listed as of the moment of its first read",
        Replace(TransactionState._plan_found, "self.txns", "''"),
    ),
    warehouse(
        "lists_request_names_no_transaction",
        "the request for lists leaves out the transaction's own number",
        Replace(wire.lists_request, "{'txn': str(txn)} if txn else {}", "{}"),
    ),
    warehouse(
        "beginning_is_not_adopted",
        "a session that adopts the beginning of its transaction keeps its token",
        never(SessionState.plan_lists, "adopt"),
    ),
    warehouse(
        "lists_move_no_token",
        "the answer with a transaction's lists has the token of the request",
        Replace(TableReads.read_lists, "proof.token_after(str(found.position))", "demand.token"),
    ),
    warehouse(
        "read_through_is_as_old_as_the_cache",
        "an answer of the metastore moves the session no further than the cache has folded",
        Replace(
            hive_latest.latest_event,
            "max((row['eventId'] for row in rows if _concerns(row, name, of_keys, of_commits)), default=since)",
            "since",
        ),
    ),
    warehouse(
        "own_write_leaves_the_others_valid",
        "write ids below a transaction's own count as committed for it",
        Replace(transactions.with_own, "[*listed.open_ids, *range(listed.hwm + 1, own)]", "[*listed.open_ids]"),
    ),
    warehouse(
        "own_write_is_not_listed",
        "a transaction's list does not count what it has written",
        never(TransactionState.plan_listed, "found.write_ids and own"),
    ),
    warehouse(
        "given_write_id_is_not_kept",
        "a transaction forgets the write id that it was given",
        Return(TransactionState.wrote, "write_id"),
    ),
    warehouse(
        "own_write_without_a_list_is_not_demanded",
        "a transaction's reads of an external table need not include what it has written there",
        never(TransactionState._plan_demand, "name_of(db, table) in self._outside"),
    ),
)
BUGS: Final = (*TOKENS, *TIMES, *OWN_WRITES, *WIDE, *RANGES, *BEGINNINGS)
