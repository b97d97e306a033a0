"""Keys of every type: what a reader may write for a row, what the server finds by it, and what may be cached of it."""

from __future__ import annotations

import asyncio
import random
from urllib.parse import quote

import msgspec
import pytest

from freshet.local.mariadb import MariaDBAddress
from serving.errors import ReadError
from serving.reads.rowkey import RowKey, parse_row_key
from serving.sources.mariadb import MariaDBRows
from serving.sources.source import RowTable, SourceKey, SourceRow
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.schema import TableFilter
from tests.sources.mariadb.conftest import Source, settings_of
from tests.sources.mariadb.test_images import COLUMNS

pytestmark = pytest.mark.integration

KINDS = [
    *(
        "tiny",
        "small_u",
        "medium",
        "int_u",
        "int_zero",
        "big",
        "big_u",
        "dec_whole",
        "dec_money",
        "dec_wide",
        "dec_zero",
    ),
    *("double_any", "day", "datetime_0", "datetime_6", "datetime_zero", "stamp_3", "time_0", "time_2", "year_any"),
    *("char_utf8", "char_latin1", "varchar_utf8", "varchar_ucs2", "varchar_cp1251", "varchar_ascii", "binary_any"),
    *("varbinary_any", "bit_1", "bit_11", "bit_64", "enum_any", "set_any", "uuid_any", "inet4_any", "inet6_any"),
]
COLLATIONS = {
    f"{kind}_{collation}": f"{kind.upper()}(20) COLLATE {collation}"
    for kind in ("char", "varchar")
    for collation in ("utf8mb4_bin", "utf8mb4_nopad_bin", "utf8mb4_general_ci", "utf8mb4_uca1400_nopad_as_cs")
}


def spellings(r: random.Random, text: str) -> list[str]:
    """Texts that a reader may write for a key, or by mistake."""
    changed = [
        text.upper(),
        text.lower(),
        text + " ",
        " " + text,
        "0" + text,
        "+" + text,
        text + "0",
        text.replace("-", ""),
    ]
    changed += [text.rstrip("0"), text.rstrip("0."), text.lstrip("0"), text[:-1], text.replace(" ", "T"), "0", ""]
    return [text, *r.sample(changed, 8)]


def segment_of(value: object) -> str | bytes:
    """A canonical key value as a reader writes it."""
    if isinstance(value, dict):
        return msgspec.convert(value["base64"], bytes, strict=False)
    return value if isinstance(value, str) else str(value)


@pytest.mark.parametrize("name", [*KINDS, *COLLATIONS])
def test_a_key_that_is_said_to_be_exact_finds_only_the_row_of_its_spelling(
    mariadb: MariaDBAddress, database: str, name: str
) -> None:
    """A row is found by its own canonical text. Any text finds what the server finds by it.

    If a text's absence may be cached, no row of another spelling is found by it.
    """
    r = random.Random(name)
    kind, value = COLUMNS[name] if name in COLUMNS else (COLLATIONS[name], COLUMNS["varchar_utf8"][1])
    with mariadb.connect(database=database, autocommit=True, charset="utf8mb4") as session, session.cursor() as cursor:
        cursor.execute("SET sql_mode='ALLOW_INVALID_DATES'")
        cursor.execute(f"CREATE TABLE t (k {kind.replace(' NULL', '')} NOT NULL PRIMARY KEY) CHARACTER SET utf8mb4")
        for _ in range(12):
            cursor.execute(f"INSERT IGNORE INTO t VALUES ({value(r)})")
    asyncio.run(_check(mariadb, database, r))


async def _check(mariadb: MariaDBAddress, database: str, r: random.Random) -> None:
    source = MariaDBRows(
        ConnectionSettings(mariadb.host, mariadb.port, mariadb.user, mariadb.password), "s/0", TableFilter((database,))
    )
    table = await source.describe(f"{database}.t")
    assert table is not None
    stored = _stored(mariadb, database)
    assert stored
    named = set()
    for key in stored:
        (own,) = msgspec.json.decode(key.partition(b"\0")[2])
        text = segment_of(own)
        for segment in [text] if isinstance(text, bytes) else spellings(r, text):
            asked = _parsed(table, segment)
            if asked is None:
                assert segment != text, f"{text!r} is refused"
                continue
            (answer,) = await source.read([SourceKey(table, asked.values)])
            row_key = answer.key if isinstance(answer, SourceRow) and answer.image is not None else None
            if segment == text and asked.key == key:
                assert row_key == key
                named.add(key)
            if asked.exact and row_key is not None:
                assert row_key == asked.key, f"{segment!r} is said to be exact, but finds {row_key!r}"
    assert named == stored, "the canonical text of a row's key does not name the row"
    await source.close()


def _stored(mariadb: MariaDBAddress, database: str) -> set[bytes]:
    """The canonical keys of all rows, by SELECT."""
    reader = Source(settings_of(mariadb), database)
    try:
        return set(reader.selected("t"))
    finally:
        reader.close()


def _parsed(table: RowTable, segment: str | bytes) -> RowKey | None:
    try:
        return parse_row_key(table, quote(segment, safe="").encode())
    except ReadError:
        return None
