"""The server's character sets: how bytes of a collation become the text that SELECT would return."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from stream.sources.mariadb.connection import Connection, fetch_all, is_mysql

BINARY_COLLATION = 63
_BY_CHARACTER: Final = re.compile(r"\w+_(bin|general_ci|general_cs|general_nopad_ci)|latin1_swedish_(nopad_)?ci")

Decode = Callable[[bytes], str]

_UNICODE = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-8",
    "utf8": "utf-8",
    "ucs2": "utf-16-be",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
}


@dataclass(frozen=True)
class Charsets:
    """``by_collation``: collation id → character set. ``tables``: single-byte set → the text of its 256 bytes.

    ``exact``: the ids of collations in which two texts are equal only if all their characters are.

    The tables come from the server. Multi-byte sets other than Unicode (sjis, gbk, …) have no decoder, because Python's
    tables differ from the server's.
    """

    by_collation: Mapping[int, str]
    tables: Mapping[str, str]
    exact: Set[int] = frozenset()

    def decoder(self, charset: str) -> Decode | None:
        """A function from bytes to text for a character set; None if there is no exact one."""
        codec = _UNICODE.get(charset)
        if codec is not None:
            return lambda value: value.decode(codec)
        table = self.tables.get(charset)
        if table is None:
            return None
        return lambda value: value.decode("latin-1").translate(table)

    def is_exact(self, charset: str) -> bool:
        """Whether values of this character set have the same canonical text from the binlog and from SELECT."""
        return charset in _UNICODE or charset in self.tables


def is_exact_collation(name: str) -> bool:
    """Whether two texts are equal only if all their characters are; most collations ignore trailing blanks at least."""
    return name.endswith(("_nopad_bin", "_0900_bin"))


def compares_by_character(name: str | None) -> bool:
    """Whether two texts are in the order of the first characters in which they differ. ``name``: None for bytes.

    Most collations of Unicode have letters that are compared as two, or not at all.
    """
    return name is None or _BY_CHARACTER.fullmatch(name) is not None


def read_charsets(connection: Connection) -> Charsets:
    """Read the server's collations, and the text of each of the 256 bytes in each single-byte set."""
    collations = _collations(connection)
    by_collation = {int(number): charset for number, charset, _ in collations}
    exact = frozenset(int(number) for number, _, name in collations if is_exact_collation(name))
    single = fetch_all(connection, "SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS WHERE MAXLEN = 1")
    names = [name for (name,) in single if name != "binary"]
    columns = ", ".join(
        "CONCAT_WS(','," + ",".join(f"HEX(CONVERT(_{name} x'{byte:02X}' USING utf8mb4))" for byte in range(256)) + ")"
        for name in names
    )
    tables = {}
    if names:
        (row,) = fetch_all(connection, f"SELECT {columns}")
        for name, text in zip(names, row, strict=True):
            tables[name] = "".join(bytes.fromhex(part).decode() for part in text.split(","))
    return Charsets(by_collation, tables, exact)


def _collations(connection: Connection) -> list[tuple[Any, ...]]:
    """The number, character set and name of each collation.

    Since 10.10 MariaDB has collations that are those of several character sets, each with a number of its own. Before,
    and in MySQL, a collation has one of each.
    """
    sql = "SELECT ID, CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.{} WHERE ID IS NOT NULL"
    if not is_mysql(connection):
        try:
            return fetch_all(connection, sql.format("COLLATION_CHARACTER_SET_APPLICABILITY"))
        except pymysql.err.MySQLError as error:
            if not error.args or error.args[0] != ER.BAD_FIELD_ERROR:
                raise
    return fetch_all(connection, sql.format("COLLATIONS"))
