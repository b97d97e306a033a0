"""Planted bugs in the source that reads a connector's topics."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, Return, connectors, leave_out, never
from stream.sources.debezium import messages, values
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
        Replace(messages.read_row, "row.op == 'm'", "row.op in 'mt'"),
    ),
    connectors(
        "large_numbers_are_negative",
        "a number beyond half of BIGINT UNSIGNED is published as the connector writes it",
        Replace(values._int, "value % _UINT64 if is_big else value", "value"),
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
BUGS: Final = (*ROUNDS, *PLACES, *MEANING)
