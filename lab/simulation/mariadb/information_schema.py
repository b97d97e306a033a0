"""What a server tells of itself: information_schema, and the answers to SHOW."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from lab.simulation.mariadb.sql.syntax import UnknownStatement, printed
from lab.simulation.mariadb.storage.collations import CHARSETS, COLLATIONS
from lab.simulation.mariadb.storage.columns import Column, Stored
from lab.simulation.mariadb.storage.tables import SYSTEM_DATABASES, Databases, Table

if TYPE_CHECKING:
    from lab.simulation.mariadb.server import SimulatedServer

InfoRow = dict[str, Stored]
"""Column in lower case → value."""
FIXED: Final = frozenset({"COLLATION_CHARACTER_SET_APPLICABILITY", "COLLATIONS", "CHARACTER_SETS"})
"""Tables that have the same rows always."""


def rows_of(name: str, databases: Databases) -> list[InfoRow]:
    """The rows of a table of information_schema."""
    match name.upper():
        case "TABLES":
            facts: InfoRow = {"table_type": "BASE TABLE", "table_rows": None}
            return [_of_table(table) | facts | {"engine": table.engine} for table in databases]
        case "COLUMNS":
            return [row for table in databases for row in _columns(table)]
        case "STATISTICS":
            return [row for table in databases for row in _statistics(table)]
        case "CHECK_CONSTRAINTS":
            return [row for table in databases for row in _checks(table)]
        case "REFERENTIAL_CONSTRAINTS":
            return [row for table in databases for row in _references(table)]
        case "KEY_COLUMN_USAGE":
            return [row for table in databases for row in _referring_columns(table)]
        case "COLLATION_CHARACTER_SET_APPLICABILITY" | "COLLATIONS":
            return [
                {"id": known.id, "character_set_name": known.charset, "collation_name": each}
                for each, known in COLLATIONS.items()
            ]
        case "CHARACTER_SETS":
            return [{"character_set_name": each, "maxlen": width} for each, (_, width) in CHARSETS.items()]
    raise UnknownStatement(f"information_schema.{name}")


def _of_table(table: Table) -> InfoRow:
    return {"table_schema": table.name[0], "table_name": table.name[1]}


def _columns(table: Table) -> Iterable[InfoRow]:
    for at, column in enumerate(table.columns, 1):
        generated = column.definition.generated
        yield _of_table(table) | {
            "column_name": column.name,
            "ordinal_position": at,
            "data_type": column.kind,
            "column_type": column.column_type,
            "character_set_name": column.charset or None,
            "collation_name": column.collation or None,
            "character_octet_length": column.octets if _has_octets(column) else None,
            "extra": "" if generated is None else "VIRTUAL GENERATED" if column.is_virtual else "STORED GENERATED",
            "generation_expression": None if generated is None else printed(generated),
        }


def _has_octets(column: Column) -> bool:
    return bool(column.charset) or column.kind in ("varbinary", "blob")


def _statistics(table: Table) -> Iterable[InfoRow]:
    for at, name in enumerate(table.primary_key, 1):
        yield _of_table(table) | {
            "index_name": "PRIMARY",
            "column_name": table.columns[table.index(name)].name,
            "seq_in_index": at,
            "sub_part": None,
            "index_type": "BTREE",
            "collation": "D" if name in table.descending else "A",
        }


def _checks(table: Table) -> Iterable[InfoRow]:
    for column in table.columns:
        if column.is_json:
            yield {
                "constraint_schema": table.name[0],
                "table_name": table.name[1],
                "constraint_name": column.name,
                "check_clause": f"json_valid(`{column.name}`)",
            }


def _references(table: Table) -> Iterable[InfoRow]:
    for key in table.foreign_keys:
        yield {
            "unique_constraint_schema": key.parent[0],
            "referenced_table_name": key.parent[1],
            "constraint_schema": table.name[0],
            "table_name": table.name[1],
            "constraint_name": key.name,
            "delete_rule": key.on_delete,
            "update_rule": key.on_update,
        }


SHOWN: Final = {
    "GLOBAL VARIABLES": ("Variable_name", "Value"),
    "VARIABLES": ("Variable_name", "Value"),
    "STATUS": ("Variable_name", "Value"),
    "ALL SLAVES STATUS": ("Connection_name", "Slave_IO_Running", "Slave_SQL_Running", "Master_Server_Id"),
    "REPLICA STATUS": ("Replica_IO_State", "Source_Host"),
    "MASTER STATUS": ("File", "Position", "Binlog_Do_DB", "Binlog_Ignore_DB"),
    "BINARY LOG STATUS": ("File", "Position", "Binlog_Do_DB", "Binlog_Ignore_DB", "Executed_Gtid_Set"),
    "BINARY LOGS": ("Log_name", "File_size"),
    "DATABASES": ("Database",),
    "WARNINGS": ("Level", "Code", "Message"),
}
"""The columns of what SHOW answers."""


def shown(what: str, server: SimulatedServer) -> list[tuple[Stored, ...]]:
    """The rows that SHOW answers, before LIKE and WHERE."""
    log = server.log
    match what:
        case "GLOBAL VARIABLES":
            return sorted((name, str(value)) for name, value in server.variables.items())
        case "STATUS":
            file, offset = server.committed_place
            return [("Binlog_snapshot_file", file), ("Binlog_snapshot_position", str(offset))]
        case "ALL SLAVES STATUS":
            source = server.source
            return [("", "Yes", "Yes", source.id)] if source is not None else []
        case "MASTER STATUS":
            return [(log.last.name, log.last.size, server.binlog_do_db, "")]
        case "REPLICA STATUS" | "WARNINGS":
            return []
        case "BINARY LOG STATUS":
            return [(log.last.name, log.last.size, server.binlog_do_db, "", server.gtid_executed)]
        case "BINARY LOGS":
            return [(file.name, file.size) for file in log.files]
        case "DATABASES":
            return [(name,) for name in sorted({*SYSTEM_DATABASES, *server.databases.tables})]
    raise UnknownStatement(f"SHOW {what}")


def _referring_columns(table: Table) -> Iterable[InfoRow]:
    for key in table.foreign_keys:
        for at, (column, referenced) in enumerate(zip(key.columns, key.parent_columns, strict=True), 1):
            yield _of_table(table) | {
                "constraint_schema": table.name[0],
                "constraint_name": key.name,
                "column_name": column,
                "ordinal_position": at,
                "referenced_table_name": key.parent[1],
                "referenced_column_name": referenced,
            }
