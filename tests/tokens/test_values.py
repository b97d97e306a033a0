"""Positions, vectors and lists as values: what they equal, how they print, and what they join with."""

from __future__ import annotations

import pytest

from tokens import NO_POSITION, EventToken, Origin, Position, TokenError, ValidWriteIdList, Vector
from tokens.comparison import compare_texts
from tokens.errors import LINE_CHARS_MAX, one_line
from tokens.logs import FilePosition
from tokens.session.packed import pack, unpack
from tokens.writeid_kinds import TxnWriteIds

A = "00010203-0405-0607-0809-0a0b0c0d0e0f"
LISTED = "db.t:12:9223372036854775807::"


@pytest.mark.parametrize(
    "value",
    [
        Vector().with_component("ks/0", 1, Position.parse("MariaDB/0-1-5")),
        ValidWriteIdList.parse(LISTED),
        TxnWriteIds.parse(f"7${LISTED}"),
        Position.parse("MariaDB/0-1-5"),
        EventToken(5, "ks/0", Position.parse("MariaDB/0-1-5")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_equals_its_own_kind_only(value: object) -> None:
    """Neither its text nor nothing is the value; equal ones have one hash."""
    again = type(value).parse(str(value))  # type: ignore[attr-defined]
    assert value == again
    assert hash(value) == hash(again)
    assert value != str(value)
    assert (value == str(value)) is False
    assert value is not None
    assert {value: 1}[again] == 1


def test_transactions_with_other_lists_or_ids_differ() -> None:
    """Both the transaction and its lists count."""
    values = [TxnWriteIds.parse(text) for text in (f"7${LISTED}", f"8${LISTED}", "7$db.t:13:9223372036854775807::")]
    assert len(set(values)) == 3
    assert values[0] != values[1]
    assert values[0] != values[2]
    assert str(values[0]) == f"7${LISTED}"
    assert str(TxnWriteIds(None)) == ""
    assert TxnWriteIds(None) == TxnWriteIds.parse("")


def test_no_position_is_below_all() -> None:
    """It joins as nothing, and prints as nothing."""
    place = Position.parse("MariaDB/0-1-5")
    assert NO_POSITION.union(place) is place
    assert NO_POSITION.join(place) is place
    assert (str(NO_POSITION), NO_POSITION.set_text(), bool(NO_POSITION.flavor)) == ("", "", False)
    assert Position.parse("") == NO_POSITION
    assert place.union(NO_POSITION) == place


def test_places_in_a_log_join_to_the_later_one() -> None:
    """A file's position holds everything before it, so the union of two is the later."""
    earlier, later = Position.parse("FilePos/a.1:5"), Position.parse("FilePos/a.1:9")
    assert isinstance(earlier, FilePosition)
    assert earlier.union(later) == later.union(earlier) == later
    assert earlier.join(NO_POSITION) == earlier


def test_a_vector_shows_its_components() -> None:
    """In a debugger, and in the message of a failed test."""
    shown = repr(Vector().with_component("ks/0", 1, Position.parse("MariaDB/0-1-5")))
    assert shown == "<Vector ks/0: 1 MariaDB/0-1-5>"
    assert repr(Vector()) == "<Vector empty>"


def _packed(position: str) -> bytes:
    return pack([("ks/0", (1, Position.parse(position)))])


def test_a_packed_position_that_is_cut_is_refused() -> None:
    """Wherever it ends, a part of a name, a UUID or a number is none."""
    sources = f"MySQL56/{A}:1-5:9,{A.replace('0f', '1f')}:blue:3"
    packed = _packed(sources)
    assert unpack(packed) == {"ks/0": (1, Position.parse(sources))}
    for end in range(1, len(packed)):
        with pytest.raises(TokenError):
            unpack(packed[:end])


def test_the_largest_interval_is_packed_and_a_larger_one_refused() -> None:
    """An end past 64 bits would wrap around in another language's reader."""
    packed = _packed(f"MySQL56/{A}:1-{2**63 - 1}")
    assert unpack(packed) == {"ks/0": (1, Position.parse(f"MySQL56/{A}:1-{2**63 - 1}"))}
    length = b"\xfe" + b"\xff" * 7 + b"\x7f"
    assert packed.endswith(length)
    with pytest.raises(TokenError, match="interval end"):
        unpack(packed.removesuffix(length) + b"\xff" * 8 + b"\x7f")


@pytest.mark.parametrize(
    ("a", "b", "why"),
    [
        ("[13:7,12,13]", "[13:7,8,9,12,13]", "write id 8 and 1 more committed in A only"),
        ("[13:7,8,9,10,12,13]", "[13:7,12,13]", "write id 8 and 2 more committed since A"),
        ("[13:7,12,13]", "[13:7,8,12,13]", "write id 8 committed in A only"),
    ],
)
def test_a_comparison_names_the_first_id_and_counts_the_rest(a: str, b: str, why: str) -> None:
    """The first one tells which commit is missing."""
    assert why in compare_texts(a, b).why
    assert ("more" in compare_texts(a, b).why) is ("more" in why)


def test_a_long_line_is_cut_in_the_middle() -> None:
    """Both its ends say something; a line of just the length stays whole."""
    half = LINE_CHARS_MAX // 2
    assert one_line("a" * LINE_CHARS_MAX) == "a" * LINE_CHARS_MAX
    assert one_line("a" * half + "-" + "b" * half) == "a" * half + "…" + "b" * half
    assert one_line("a\nb\x00") == "a\\nb\\x00"


def test_two_tokens_of_one_shard_are_explained_by_that_shard() -> None:
    """Origins that they share as well are not needed, and without own positions the origins explain."""
    origin = Origin("old/0", Position.parse("MariaDB/0-1-3"), 1)
    a, b = (EventToken(5, "ks/0", Position.parse(f"MariaDB/0-1-{number}"), origin, 2) for number in (6, 5))
    assert compare_texts(str(a), str(b)).why == "in ks/0, epoch 2: A holds all of B, and more"
    other = EventToken(5, "ks/1", Position.parse("MariaDB/0-1-5"), origin, 2)
    assert compare_texts(str(a), str(other)).why == "in old/0, epoch 1: both hold the same"


def test_a_number_that_joins_two_intervals_leaves_the_others() -> None:
    """Only the two neighbours become one."""
    place = Position.parse(f"MySQL56/{A}:1-3:5-6:9:11-12")
    assert str(place.append(f"{A}:4")) == f"MySQL56/{A}:1-6:9:11-12"
    assert str(place.append(f"{A}:10")) == f"MySQL56/{A}:1-3:5-6:9-12"
    assert str(place.append(f"{A}:13")) == f"MySQL56/{A}:1-3:5-6:9:11-13"
    assert str(place.append(f"{A}:8")) == f"MySQL56/{A}:1-3:5-6:8-9:11-12"


@pytest.mark.parametrize("method", ["union", "join"])
def test_positions_of_two_kinds_of_server_are_never_one(method: str) -> None:
    """Their sets have nothing in common, so the result would claim what nobody has seen."""
    texts = ["MariaDB/0-1-5", f"MySQL56/{A}:1", "FilePos/a.1:5", "HiveEvent/5"]
    for one in map(Position.parse, texts):
        for other in map(Position.parse, texts):
            if one.flavor != other.flavor:
                with pytest.raises(TokenError):
                    getattr(one, method)(other)


@pytest.mark.parametrize("number", [0, 1, 126, 127, 128, 129, 16_383, 16_384, 2**31, 2**63 - 1])
def test_a_number_of_any_length_is_packed(number: int) -> None:
    """Those that just fit into so many bytes, too."""
    assert unpack(_packed(f"HiveEvent/{number}")) == {"ks/0": (1, Position.parse(f"HiveEvent/{number}"))}
    epochs = [("ks/0", (number, Position.parse("HiveEvent/5")))]
    assert unpack(pack(epochs)) == dict(epochs)


def test_an_errors_text_is_one_line() -> None:
    """Whatever was quoted in it: it goes into logs and answers."""
    assert "\n" not in str(TokenError("a\nb"))
    assert str(TokenError("a b")) == "a b"
