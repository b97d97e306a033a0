"""Every parser either parses a text or refuses it with a `TokenError`, quickly, whatever the text is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokens import EventToken, Position, TokenError, ValidWriteIdList, Vector, vector
from tokens.comparison import parse_token
from tokens.session.texts import TOKENS_MAX
from tokens.writeid_kinds import CleanerWriteIdList, CompactorWriteIdList, TxnWriteIds

PARSERS: dict[str, Callable[[str], object]] = {
    "position": Position.parse,
    "mysql": lambda text: Position.parse(text, "MySQL56"),
    "mariadb": lambda text: Position.parse(text, "MariaDB"),
    "filepos": lambda text: Position.parse(text, "FilePos"),
    "event id": lambda text: Position.parse(text, "HiveEvent"),
    "append mysql": Position.parse("MySQL56/").append,
    "append mariadb": Position.parse("MariaDB/").append,
    "append file": Position.parse("FilePos/bin.000001:4").append,
    "append to nothing": Position.parse("").append,
    "event token": EventToken.parse,
    "vector": Vector.parse,
    "vectors": Vector.parse_all,
    "list": ValidWriteIdList.parse,
    "compactor": CompactorWriteIdList.parse,
    "cleaner": CleanerWriteIdList.parse,
    "bundle": TxnWriteIds.parse,
    "any": parse_token,
}
PIECES = [
    *"/:,-;=@%#[]$+_ \t\n\0",
    *(
        "MariaDB/",
        "MySQL56/",
        "FilePos/",
        "HiveEvent/",
        "v1.",
        "v2.",
        "v2.AAAAAA",
        "time=",
        "shard=",
        "position=",
        "origin=",
        "epoch=",
        "null",
    ),
    *("0", "1", "7", "0-1-5", "0x1f", "9223372036854775807", "9223372036854775808", "18446744073709551616", "١", "²"),
    *(
        "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "blue",
        "db.t:12:7:7,8:12",
        "[12:7,8]",
        "W10",
        "%41",
        "%ff",
        "\ud800",
        "é",
    ),
]
texts = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
@settings(max_examples=300)
@given(text=texts)
def test_any_text_parses_or_is_refused(parser: Callable[[str], object], text: str) -> None:
    """A refusal is a `TokenError` of one short line; a parsed value prints a text that parses to the same value."""
    refusal = ""
    try:
        parsed = parser(text)
    except TokenError as error:
        refusal = str(error)
    if refusal:
        assert len(refusal.splitlines()) == 1
        assert len(refusal) < 400
        return
    printed = str(parsed)
    if isinstance(parsed, Position | EventToken | Vector):
        assert type(parsed).parse(printed) == parsed
    elif isinstance(parsed, ValidWriteIdList):
        assert str(type(parsed).parse(printed)) == printed or "null" in printed.lower()


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
@pytest.mark.parametrize("piece", PIECES, ids=ascii)
def test_a_hundred_thousand_characters_take_no_time(parser: Callable[[str], object], piece: str) -> None:
    """100 kB of any one piece, alone or inside a token, is parsed or refused within a second."""
    long = piece * (100_000 // len(piece))
    for text in (long, f"MariaDB/{long}", f"MySQL56/00010203-0405-0607-0809-0a0b0c0d0e0f:{long}", f"db.t:12:7:{long}:"):
        started = time.process_time()
        with contextlib.suppress(TokenError):
            str(parser(text))
        assert time.process_time() - started < 1.0


def test_a_thousand_tokens_are_merged_with_few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of different shards: merged one after the other, each would copy all that came before it."""
    text = ",".join(str(Vector({f"shop/{number}": (1, Position.parse("HiveEvent/1"))})) for number in range(TOKENS_MAX))
    copied: list[str] = []
    checked = vector._checked

    def counted(shard: str, *more: Any) -> Any:
        copied.append(shard)
        return checked(shard, *more)

    monkeypatch.setattr(vector, "_checked", counted)
    assert len(Vector.parse_all(text)) == TOKENS_MAX
    assert len(copied) <= 12 * TOKENS_MAX


def test_a_hundred_kilobytes_of_good_text_are_read() -> None:
    """Long valid sets and lists are read completely; length alone is no reason to refuse."""
    numbers = range(1, 20_000, 2)
    mysql = Position.parse("MySQL56/00010203-0405-0607-0809-0a0b0c0d0e0f:" + ":".join(map(str, numbers)))
    assert mysql.contains(mysql.append("00010203-0405-0607-0809-0a0b0c0d0e0f:2").difference(mysql)) is False
    mariadb = Position.parse("MariaDB/" + ",".join(f"{number}-1-{number}" for number in numbers))
    assert Position.parse(str(mariadb)) == mariadb
    write_ids = ValidWriteIdList.parse("db.t:30000:1:" + ",".join(map(str, numbers)) + ":")
    assert write_ids.exceptions == tuple(numbers)
    assert write_ids.covers(write_ids)
