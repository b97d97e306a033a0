"""Event tokens: their text, their order by positions alone, and Vitess's rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tokens import strategies as some
from tokens import EventToken, Order, Origin, Position, TokenError, order, vitess_fresher

P = Position.parse
any_text = st.text(st.characters(), max_size=12)


@given(
    st.integers(-(2**63), 2**63 - 1),
    any_text,
    st.one_of(
        st.none(),
        some.positions,
        st.builds(lambda file: P(f"FilePos/{file}:1"), st.text(max_size=6).filter(lambda s: ":" not in s)),
    ),
    st.one_of(st.none(), st.builds(Origin, any_text, some.positions, some.epochs)),
    st.integers(0, 2**63 - 1),
)
def test_any_token_survives_its_text(
    timestamp: int, shard: str, position: Position | None, origin: Origin | None, epoch: int
) -> None:
    """Any shard name, file name, origin and epoch can be read back; the text is one printable line."""
    token = EventToken(timestamp, shard, position, origin, epoch)
    assert EventToken.parse(str(token)) == token
    assert len(str(token).split()) == 1
    assert str(EventToken.parse(str(token))) == str(token)


@given(some.event_tokens(), some.event_tokens())
def test_order_is_antisymmetric(a: EventToken, b: EventToken) -> None:
    """Swapping the tokens reverses the order; the two are never both newer."""
    assert order(a, b) is order(b, a).reversed()
    assert not (vitess_fresher(a, b) > 0 and vitess_fresher(b, a) > 0)


@given(some.event_tokens(), some.event_tokens(), some.event_tokens())
def test_order_is_transitive_within_a_lineage(a: EventToken, b: EventToken, c: EventToken) -> None:
    """In one shard and epoch, if a is newer than b and b newer than c, then a is newer than c."""
    if len({(token.shard, token.epoch) for token in (a, b, c)}) == 1 and order(a, b) is Order.NEWER is order(b, c):
        assert order(a, c) is Order.NEWER


@given(some.event_tokens(), some.event_tokens(), st.integers(-5, 5))
def test_timestamps_never_order(a: EventToken, b: EventToken, timestamp: int) -> None:
    """Another timestamp does not change the order."""
    moved = EventToken(timestamp, a.shard, a.position, a.origin, a.epoch)
    assert order(moved, b) is order(a, b)


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [
        (EventToken(1, "s", P("MariaDB/0-1-6")), EventToken(9, "s", P("MariaDB/0-1-5")), Order.NEWER),
        (EventToken(1, "s", P("MariaDB/0-1-6"), epoch=1), EventToken(1, "s", P("MariaDB/0-1-5")), Order.UNKNOWN),
        (EventToken(9, "s", P("MariaDB/0-1-6")), EventToken(1, "t", P("MariaDB/0-1-5")), Order.UNKNOWN),
        (EventToken(1, "", P("MariaDB/0-1-6")), EventToken(1, "", P("MariaDB/0-1-5")), Order.UNKNOWN),
        (EventToken(1, "s", None), EventToken(1, "s", None), Order.UNKNOWN),
        (
            EventToken(1, "t", P("MariaDB/0-9-1"), ("s", P("MariaDB/0-1-6"))),
            EventToken(1, "s", P("MariaDB/0-1-5")),
            Order.NEWER,
        ),
        (
            EventToken(1, "t", P("MariaDB/0-9-1"), ("s", P("MariaDB/0-1-6"))),
            EventToken(1, "u", P("MariaDB/0-8-1"), ("s", P("MariaDB/0-1-7"))),
            Order.OLDER,
        ),
        (
            EventToken(1, "t", P("MariaDB/0-9-1"), ("s", P("MariaDB/0-1-6"))),
            EventToken(1, "s", P("MariaDB/0-1-5"), ("t", P("MariaDB/0-9-2"))),
            Order.UNKNOWN,
        ),
        (
            EventToken(1, "t", P("MariaDB/0-9-1"), ("s", P("MariaDB/0-1-6"))),
            EventToken(1, "s", P("MariaDB/0-1-5"), epoch=1),
            Order.UNKNOWN,
        ),
        (
            EventToken(1, "t", P("MariaDB/0-9-1"), Origin("s", P("MariaDB/0-1-6"), 1)),
            EventToken(1, "s", P("MariaDB/0-1-5"), epoch=1),
            Order.NEWER,
        ),
    ],
)
def test_orders_that_are_easy_to_get_wrong(a: EventToken, b: EventToken, answer: Order) -> None:
    """Other epochs, missing shards and disagreeing positions are unknown; a shared origin decides."""
    assert order(a, b) is answer


def test_vitess_fresher_is_exact_where_vitess_wraps() -> None:
    """A difference of timestamps that needs 65 bits keeps its sign; nil and unknown give -1."""
    early, late = EventToken(-(2**63), "s", None), EventToken(2**63 - 1, "s", None)
    assert vitess_fresher(late, early) == 2**64 - 1
    assert vitess_fresher(early, late) == -(2**64 - 1)
    assert vitess_fresher(None, late) == vitess_fresher(late, None) == vitess_fresher(late, late) == -1


def test_the_text_is_for_people() -> None:
    """A token shows time, shard, epoch, position and origin as they are; only separators are escaped."""
    token = EventToken(1480000000, "ks/-80", P("MariaDB/0-1-5"), ("a@b", P("MariaDB/0-1-4")), 2)
    assert str(token) == "time=1480000000;shard=ks/-80;epoch=2;position=MariaDB/0-1-5;origin=a%40b@MariaDB/0-1-4"
    assert str(EventToken(5, "", None)) == "time=5"
    named = EventToken(5, "s#1", None, Origin("a#1", P("FilePos/b#2:7"), 3))
    assert str(named) == "time=5;shard=s#1;origin=a%231@FilePos/b%232:7#3"
    assert EventToken.parse(str(named)) == named
    assert EventToken(5, "s", P("")) == EventToken(5, "s", None)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "''"),
        ("shard=s", "no time"),
        ("time=5;time=6", "time=6"),
        ("time=5;colour=red", "colour=red"),
        ("time=5;shard=%zz", "%zz"),
        ("time=5;shard=%ff", "%ff"),
        ("time=5;position=0-1-5", "0-1-5"),
        ("time=5;origin=s", "'s'"),
        ("time=5;epoch=-1", "-1"),
        ("time=9223372036854775808", "9223372036854775808"),
        ("time= 5", "' 5'"),
    ],
)
def test_a_refused_text_is_named(text: str, part: str) -> None:
    """The error says which part of an event token is wrong."""
    with pytest.raises(TokenError, match=part.replace("(", r"\(")):
        EventToken.parse(text)


def test_tokens_without_a_shard_have_no_order_but_by_time() -> None:
    """Vitess's rule compares positions within a shard; without one they may be of different logs."""
    older, newer = (EventToken(5, "", Position.parse(f"MariaDB/0-1-{number}")) for number in (4, 5))
    assert vitess_fresher(newer, older) == vitess_fresher(older, newer) == vitess_fresher(older, older) == -1


def test_tokens_without_a_position_have_no_order_but_by_time() -> None:
    """Whichever of the two has none."""
    placed, unplaced = (EventToken(5, "s", position) for position in (P("MariaDB/0-1-5"), None))
    assert vitess_fresher(placed, unplaced) == vitess_fresher(unplaced, placed) == -1
    assert order(placed, unplaced) is order(unplaced, placed) is Order.UNKNOWN


def test_a_mark_between_fields_is_escaped_in_an_origin_only() -> None:
    """``#`` comes before an origin's epoch, so an origin's own one must not be taken for it."""
    token = EventToken(5, "a#b", Position.parse("FilePos/f#1:4"), Origin("c#d", Position.parse("FilePos/g#2:4"), 3))
    assert str(token).count("#") == 3
    assert EventToken.parse(str(token)) == token
