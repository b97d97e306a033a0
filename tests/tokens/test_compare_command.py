"""``freshet compare`` says newer, older, same or unknown, and why."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given

from freshet.cli import run
from tests.tokens import strategies as some
from tokens import EventToken, Order, Position, TokenError, Vector
from tokens.comparison import compare_texts

A = "MySQL56/00010203-0405-0607-0809-0a0b0c0d0e0f"
EVENT = EventToken(5, "ks/0", Position.parse("MariaDB/0-1-5"))


def _vector(epoch: int, position: str, shard: str = "ks/0") -> str:
    return str(Vector().with_component(shard, epoch, Position.parse(position)))


@pytest.mark.parametrize(
    ("a", "b", "order", "why"),
    [
        (f"{A}:1-9", f"{A}:1-5", Order.NEWER, "A holds all of B"),
        ("MariaDB/0-1-5", "MariaDB/0-1-6", Order.OLDER, "B holds all of A"),
        ("MariaDB/0-1-5", "MariaDB/0-2-5", Order.UNKNOWN, "two servers"),
        ("MariaDB/0-1-5", "HiveEvent/5", Order.UNKNOWN, "MariaDB and HiveEvent have nothing in common"),
        ("FilePos/a.1:5", "FilePos/b.1:5", Order.UNKNOWN, "base names"),
        ("Postgres/16/9", "Postgres/16/A", Order.OLDER, "B holds all of A"),
        ("Postgres/1:16/A", "Postgres/2:16/9", Order.UNKNOWN, "not of one timeline"),
        ("HiveEvent/7", "HiveEvent/6", Order.NEWER, "A holds all of B"),
        (f"{A}:1-9:", f"{A}:1-5:6-9", Order.SAME, "both hold the same"),
        (f"{A}:1", f"{A}:2", Order.UNKNOWN, "each holds something"),
        (str(EVENT), "time=9;shard=ks/0;position=MariaDB/0-1-4", Order.NEWER, "in ks/0, epoch 0: A holds all of B"),
        (str(EVENT), "time=9;shard=ks/0;epoch=1;position=MariaDB/0-1-4", Order.UNKNOWN, "timestamps don't order"),
        (str(EVENT), "time=9;shard=ks/0;position=MariaDB/0-2-5", Order.UNKNOWN, "in ks/0, epoch 0: two servers"),
        (str(EVENT), _vector(0, "MariaDB/0-1-6"), Order.OLDER, "ks/0: B holds all of A"),
        (_vector(0, "MariaDB/0-1-6"), str(EVENT), Order.NEWER, "ks/0: A holds all of B"),
        (_vector(0, "MariaDB/0-1-6"), _vector(1, "MariaDB/0-1-6"), Order.UNKNOWN, "epochs 0 and 1"),
        (_vector(0, "MariaDB/0-1-6"), str(Vector()), Order.NEWER, "only A has seen it"),
        (str(Vector()), str(Vector()), Order.SAME, "both are empty"),
        ("[11:7,8]", "db.t:12:7:7,8,12:", Order.SAME, "each serves a reader of the other"),
        ("[12:7,12]", "[12:7,8,12]", Order.NEWER, "write id 8 committed in A only"),
        ("[12:7,8,12]", "[12:7,12]", Order.OLDER, "write id 8 committed since A"),
        ("db.t:13:7:7,13:", "db.t:13:7:7,12:", Order.UNKNOWN, "write id 12 committed in A only, write id 13 in B only"),
        ("db.t:5:7::", "db.u:5:7::", Order.UNKNOWN, "two tables: db.t and db.u"),
        ("v2.t:12:7:7,8:", "v2.t:12:7:7:", Order.OLDER, "write id 8 committed since A"),
        ("v1.t:5:7", "v12.t:5:7", Order.UNKNOWN, "two tables: v1.t and v12.t"),
        ("DB.T:5:7::3", "db.t:5:7::3", Order.SAME, "each serves a reader of the other"),
    ],
)
def test_each_kind_is_compared_with_a_reason(a: str, b: str, order: Order, why: str) -> None:
    """Positions, event tokens, vectors and lists are compared; swapping the sides reverses the answer."""
    found = compare_texts(a, b)
    assert found.order is order
    assert why in found.why
    assert compare_texts(b, a).order is order.reversed()


def test_two_kinds_are_refused() -> None:
    """A position and a list cannot be compared, and an unknown text is refused with examples."""
    with pytest.raises(TokenError, match=r"a position.*a write-id list"):
        compare_texts("MariaDB/0-1-5", "db.t:5:7::")
    with pytest.raises(TokenError) as refused:
        compare_texts("what", "MariaDB/0-1-5")
    assert "MariaDB/0-1-5" in refused.value.hint
    with pytest.raises(TokenError, match=r"token 'v2\.abc:d' is damaged"):
        compare_texts("v2.abc:d", "v2.abc")


def test_the_command_prints_a_line_or_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    """Any answer is a line or JSON with exit code 0; an unreadable text is an error with a code and exit code 1."""
    assert run(["compare", "0-1-5", "0-1-6", "--flavor", "MariaDB"]) == 0
    assert capsys.readouterr().out == "older: B holds all of A, and more\n"
    assert run(["compare", "db.t:12:7:7,12:", "db.t:12:7:7,8,12:", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["order"], answer["hive_compare"], answer["a_covers_b"]) == ("newer", 1, True)
    assert run(["compare", "16/9", "Postgres/16/A", "--flavor", "Postgres"]) == 0
    assert capsys.readouterr().out == "older: B holds all of A, and more\n"
    assert run(["compare", "MariaDB/0-1", "MariaDB/0-1-6"]) == 1
    assert "error[bad_token]: MariaDB GTID '0-1'" in capsys.readouterr().err
    assert run(["compare", "MariaDB/0-1-5"]) == 2


@given(some.mariadb_positions, some.mariadb_positions)
@example(Position.parse("MariaDB/0-1-5"), Position.parse("MariaDB/0-2-5,1-1-1"))
def test_either_side_is_told_the_same_reason(a: Position, b: Position) -> None:
    """The reason names A and B; it doesn't depend on which of two positions was given first."""
    there, back = compare_texts(str(a), str(b)), compare_texts(str(b), str(a))
    assert back.why == there.why.translate(str.maketrans("AB", "BA"))


@pytest.mark.parametrize(("a", "b"), [("db.t:5:7::", "[5:7]"), ("[5:7]", "db.t:5:7::"), ("[5:7]", "[5:7]")])
def test_lists_without_a_table_have_no_compare_of_hive(a: str, b: str) -> None:
    """Hive compares lists of one table; the seed's short form names none."""
    found = compare_texts(a, b)
    assert set(found.details) == {"a_covers_b", "b_covers_a"}
    assert "hive_compare" in compare_texts("db.t:5:7::", "db.t:6:7::").details


def test_tokens_whose_places_disagree_are_told_so() -> None:
    """Two shards are shared, and each token is ahead in one of them."""
    a = EventToken(5, "t", Position.parse("MariaDB/0-1-1"), ("s", Position.parse("MariaDB/0-1-6")))
    b = EventToken(5, "s", Position.parse("MariaDB/0-1-5"), ("t", Position.parse("MariaDB/0-1-2")))
    assert compare_texts(str(a), str(b)).why == "in 2 shards the positions disagree"
