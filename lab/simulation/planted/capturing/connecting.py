"""Planted bugs in the source that reads a connector's topics, and in the connection of who writes to its MySQL."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, Return, connectors, leave_out, never
from serving.client.tracked_mysql import MysqlTrackedConnection
from stream.sources.debezium import messages, values
from stream.sources.debezium.invalidating import InvalidatingReader
from stream.sources.debezium.reader import DebeziumReader
from stream.sources.debezium.topics import ConnectorTopics
from stream.sources.debezium.transactions import Assembler

ROUNDS: Final = (
    connectors(
        "statement_voids_nothing_that_follows",
        "transactions between a statement's first sight and its place do not void its tables",
        leave_out(DebeziumReader._finished, "for pending in self._pending:\n    ..."),
    ),
    connectors(
        "rows_in_the_order_of_arrival",
        "the rows of a transaction are taken in the order in which they were read",
        Replace(Assembler._whole, "sorted(found.rows, key=lambda row: row.order)", "found.rows"),
    ),
    connectors(
        "deleted_rows_are_not_told",
        "a row that is deleted is not told",
        leave_out(DebeziumReader._put, "transaction.rows.put(old[0], None, old[1] or None)"),
    ),
    connectors(
        "rows_without_room_are_none",
        "rows for which there was no room are left out of their transaction",
        never(Assembler._whole, "found.is_lost and found.counts[table]"),
    ),
)
PLACES: Final = (
    connectors(
        "deleted_messages_are_passed_over",
        "messages that were deleted before they were read are taken for none",
        leave_out(ConnectorTopics.poll, "self._check(message)"),
    ),
)
MEANING: Final = (
    connectors(
        "prepared_rows_count",
        "rows of an XA transaction are taken for committed, or not, without a sign of it",
        Return(DebeziumReader._check_ended, "None"),
    ),
    connectors(
        "truncate_is_no_statement",
        "a TRUNCATE in a table's topic is passed over",
        Replace(messages._read_row, "row.op == 'm'", "row.op in 'mt'"),
    ),
    connectors(
        "large_numbers_are_negative",
        "a number beyond half of BIGINT UNSIGNED is published as the connector writes it",
        Replace(values._int, "value + size if value < 0 else value", "value"),
    ),
    connectors(
        "decimals_lose_their_sign",
        "a negative decimal is read as a large one",
        Replace(
            values._decimal_bytes,
            "int.from_bytes(b64decode(value), 'big', signed=True)",
            "int.from_bytes(b64decode(value), 'big')",
        ),
    ),
    connectors(
        "fraction_of_the_connector",
        "a time has as many digits as the connector writes",
        Return(values._digits, "6"),
    ),
)
WRITERS: Final = (
    connectors(
        "mysql_news_are_not_heard",
        "what a MySQL tells of a session's commits is passed over",
        leave_out(MysqlTrackedConnection._listen, "self._told += gtids_in(bytes(message))"),
    ),
    connectors(
        "mysql_is_taken_to_tell_all",
        "a MySQL that nobody has asked to tell of commits is taken to have told of them",
        Replace(MysqlTrackedConnection._is_observed, "mode == 'OWN_GTID'", "True"),
        Replace(MysqlTrackedConnection._is_observed, "self._inner.client_flag & SESSION_TRACK", "True"),
    ),
)
WITHOUT_ENDS: Final = (
    connectors(
        "void_rows_are_not_read_again",
        "a source that is restarted does not read again what may have to be void once more",
        Replace(InvalidatingReader._starts, "(*self._held, self._now)", "(self._now,)"),
    ),
    connectors(
        "settled_by_the_first_end",
        "rows that were just read are taken for committed, though what is prepared may not be named yet",
        Replace(
            InvalidatingReader._up_to,
            "if self._held or self._now.starts:\n    self._settle_held(self._schema.settled())\n"
            "if self._now.starts:\n    self._held.append(self._ended(self._now))\n    self._now = self._new_read()",
            "if self._now.starts:\n    self._held.append(self._ended(self._now))\n    self._now = self._new_read()\n"
            "if self._held:\n    self._settle_held(self._schema.settled())",
        ),
    ),
    connectors(
        "void_once_only",
        "a row whose transaction is not told to its end is void where it was read, and not again",
        Return(InvalidatingReader._held_on, "False"),
    ),
)
BUGS: Final = (*ROUNDS, *PLACES, *MEANING, *WRITERS, *WITHOUT_ENDS)
