"""Many tables for a metastore, by way of its database: copies of one table, with its partitions.

A metastore makes some tens of tables a second. Its database copies hundreds of thousands of rows in that time.
"""

from __future__ import annotations

from typing import Any, Final

STEP: Final = 1_000_000
"""Between the ids of one copy and those of the next."""
_OF_TABLE: Final = "TBL_ID = {table}"
_OF_PARTITIONS: Final = "PART_ID IN (SELECT PART_ID FROM PARTITIONS WHERE TBL_ID = {table})"
_STORAGE: Final = (
    "(SELECT SD_ID FROM TBLS WHERE TBL_ID = {table} UNION SELECT SD_ID FROM PARTITIONS WHERE TBL_ID = {table})"
)
_COLUMNS: Final = f"CD_ID IN (SELECT CD_ID FROM SDS WHERE SD_ID IN {_STORAGE})"
_SERDES: Final = f"SERDE_ID IN (SELECT SERDE_ID FROM SDS WHERE SD_ID IN {_STORAGE})"
COPIED: Final = {
    "CDS": _COLUMNS,
    "COLUMNS_V2": _COLUMNS,
    "SERDES": _SERDES,
    "SERDE_PARAMS": _SERDES,
    "SDS": f"SD_ID IN {_STORAGE}",
    "SD_PARAMS": f"SD_ID IN {_STORAGE}",
    "TBLS": _OF_TABLE,
    "TABLE_PARAMS": _OF_TABLE,
    "PARTITION_KEYS": _OF_TABLE,
    "PARTITIONS": _OF_TABLE,
    "PARTITION_PARAMS": _OF_PARTITIONS,
    "PARTITION_KEY_VALS": _OF_PARTITIONS,
}
"""Table of the metastore's schema → which of its rows belong to the table that is copied; parents first."""
IDS: Final = frozenset({"CD_ID", "SERDE_ID", "SD_ID", "TBL_ID", "PART_ID"})


def copy_table(connection: Any, table_id: int, copies: int) -> None:
    """Copies a table ``t000000`` as ``t000001`` and so on. The metastore may run: it takes its next ids above them."""
    with connection.cursor() as cursor:
        for of, which in COPIED.items():
            cursor.execute(f"SELECT * FROM {of} LIMIT 0")
            columns = [column[0] for column in cursor.description]
            values = ", ".join(_copied(column) for column in columns)
            names = ", ".join(f"`{column}`" for column in columns)
            chosen = which.format(table=table_id)
            cursor.execute(
                f"INSERT INTO {of} ({names}) SELECT {values} FROM {of} JOIN seq_1_to_{copies} AS copies WHERE {chosen}"
            )
        cursor.execute(f"UPDATE SEQUENCE_TABLE SET NEXT_VAL = NEXT_VAL + {(copies + 1) * STEP}")
    connection.commit()


def _copied(column: str) -> str:
    if column in IDS:
        return f"`{column}` + {STEP} * seq"
    return "CONCAT('t', LPAD(seq, 6, '0'))" if column == "TBL_NAME" else f"`{column}`"
