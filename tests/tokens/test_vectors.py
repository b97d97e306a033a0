"""Vectors: opaque text, and a merge that may be repeated in any order."""

from __future__ import annotations

import pickle
import string
from base64 import urlsafe_b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tokens import strategies as some
from tokens import EventToken, Order, Position, TokenError, Vector

P = Position.parse
blanks = st.sampled_from(["", " ", "\t", ",", " ,\t"])
URL_SAFE = set(string.ascii_letters + string.digits + "-._~")


@given(st.dictionaries(some.shard_names, st.tuples(some.epochs, some.positions), max_size=4).map(Vector))
def test_any_vector_survives_its_text(vector: Vector) -> None:
    """The text is URL-safe, begins with a version, can be read back, and depends only on the components."""
    text = str(vector)
    assert Vector.parse(text) == vector
    assert set(text) <= URL_SAFE
    assert text.startswith("v2.")
    assert str(Vector(dict(reversed(list(vector.items()))))) == text
    assert pickle.loads(pickle.dumps(vector)) == vector
    assert hash(vector) == hash(Vector.parse(text))
    assert list(vector) == sorted(vector)


@given(some.vectors, some.vectors, some.vectors)
def test_merge_is_a_least_upper_bound(a: Vector, b: Vector, c: Vector) -> None:
    """Merging is commutative, associative and idempotent, and the empty vector changes nothing."""
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(a) == a
    assert a.merge(b).merge(a) == a.merge(b)
    assert a.merge(Vector()) == Vector().merge(a) == a


@given(some.vectors, some.vectors)
def test_a_merged_vector_keeps_what_either_has_seen(a: Vector, b: Vector) -> None:
    """Of each shard the higher epoch is kept; in one epoch nothing that either has seen is lost."""
    merged = a.merge(b)
    assert set(merged) == {*a, *b}
    for shard in merged:
        sides = [side for side in (a.get(shard), b.get(shard)) if side is not None]
        kept = merged.get(shard)
        assert kept is not None
        assert kept.epoch == max(side.epoch for side in sides)
        assert all(kept.position.contains(side.position) for side in sides if side.epoch == kept.epoch)


@given(some.vectors, some.vectors)
def test_order_of_vectors_is_antisymmetric(a: Vector, b: Vector) -> None:
    """Swapping the sides reverses the order, SAME means equal, and a merge is never older than a side."""
    assert a.order(b) is b.order(a).reversed()
    assert (a.order(b) is Order.SAME) is (a == b)


def test_an_event_tokens_text_is_a_vector_of_one_place() -> None:
    """A client may send an event token as a vector; one without shard or position is refused."""
    token = EventToken(5, "ks/0", P("MariaDB/0-1-5"), epoch=2)
    assert Vector.parse(str(token)) == Vector().with_component("ks/0", 2, P("MariaDB/0-1-5"))
    for empty in (EventToken(5, "", P("MariaDB/0-1-5")), EventToken(5, "ks/0", None)):
        with pytest.raises(TokenError):
            Vector.parse(str(empty))


def test_a_vector_is_changed_by_making_another() -> None:
    """Components are replaced and dropped in copies; the original stays."""
    vector = Vector({"b": (1, P("MariaDB/0-1-5"))})
    more = vector.with_component("a", 0, P("HiveEvent/7")).with_component("b", 2, P("MariaDB/0-1-1"))
    assert list(more) == ["a", "b"]
    assert vector.get("b") == (1, P("MariaDB/0-1-5"))
    assert more.get("b") == (2, P("MariaDB/0-1-1"))
    assert more.without("b").without("z") == Vector({"a": (0, P("HiveEvent/7"))})
    assert (len(more), bool(Vector()), "a" in more) == (2, False, True)


def test_positions_without_a_join_do_not_merge() -> None:
    """Two flavors, or two binlogs, for one shard and epoch are an error, not a guess."""
    vectors = [
        Vector({"s": (0, P(text))}) for text in ("MariaDB/0-1-5", "HiveEvent/5", "FilePos/a.1:5", "FilePos/b.1:5")
    ]
    for a in vectors:
        for b in vectors:
            if a != b:
                with pytest.raises(TokenError):
                    a.merge(b)


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        "7",
        "null",
        '[["s",0]]',
        '[["s",true,"MariaDB/0-1-5"]]',
        '[["s",-1,"MariaDB/0-1-5"]]',
        '[["s",0,""]]',
        '[["",0,"MariaDB/0-1-5"]]',
        '[["s",0,"0-1-5"]]',
        '[["s",0,"MariaDB/0-1-5"],["s",1,"MariaDB/0-1-5"]]',
        "[" * 60000,
        "[" + "9" * 9000 + "]",
    ],
)
def test_damaged_tokens_are_refused(body: str) -> None:
    """A token of the first format with any content is either read completely or refused in one line."""
    with pytest.raises(TokenError):
        Vector.parse("v1." + urlsafe_b64encode(body.encode()).decode().rstrip("="))


@pytest.mark.parametrize(
    "text", ["", "v2.W10", "v2.", "v3.W10", "v1.!!!!", "v1.W", "v1.ü", "MariaDB/0-1-5", "v1.\ud800"]
)
def test_foreign_tokens_are_refused(text: str) -> None:
    """A text that is not a Freshet token is refused with a hint."""
    with pytest.raises(TokenError) as refused:
        Vector.parse(text)
    assert "token" in str(refused.value)
    assert refused.value.hint


@given(st.lists(some.vectors, min_size=1, max_size=4), st.sampled_from([",", ", ", ",\t "]), blanks, blanks)
@example([Vector({"ks/0": (1, P("MariaDB/0-1-5"))})], ",", "\t", "")
@example([Vector({"ks/0": (1, P("MariaDB/0-1-5"))})], ",", "", "\t")
@example([Vector({"ks/0": (1, P("MariaDB/0-1-5"))})], ",", "", " ")
@example([Vector({"ks/0": (1, P("MariaDB/0-1-5"))})], ",", "", ",")
def test_several_tokens_are_read_as_their_merge(parts: list[Vector], between: str, before: str, after: str) -> None:
    """A header that is sent twice is joined by commas and blanks; a session that came twice has seen both."""
    text = before + between.join(map(str, parts)) + after
    merged = Vector()
    for vector in parts:
        merged = merged.merge(vector)
    assert Vector.parse_all(text) == merged
    assert Vector.parse_known(text) == (merged, ())
