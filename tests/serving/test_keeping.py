"""Rows that an application gives to the cache: nothing is believed, and nothing is tried for ever."""

from __future__ import annotations

import asyncio
from typing import cast

import httpx2
import msgspec
import pytest

from serving.answers import RawRowAnswer
from serving.client import Conflict, Session
from serving.client.answers import KeptAnswer, RowAnswer
from serving.http.app import make_app
from serving.http.front import make_front
from serving.keeping import ATTEMPTS, keep_row
from serving.locations.refreshing import Locations
from serving.reads.demands import ReadDemand, RequestedRow
from serving.reads.rows import RowReads
from serving.reads.spaces import RowSpace
from stream.wire.keys import Layout
from tests.serving.asking import ask_app
from tests.serving.fakes import FakeOwner, FakeRowSource, Network, owner_row, seen
from tests.serving.scripted_front import Front, problem, vector
from tokens import Vector

ROW = "/v1/rows/shop/shop.items/7"
IMAGE = b'{"id":7,"n":null}'
GIVEN = {"n": None, "id": 7}
SEEN = str(seen("shop/0", "0-1-5"))


def put(
    monkeypatch: pytest.MonkeyPatch, owner: FakeOwner, source: FakeRowSource, body: object, token: str = SEEN
) -> httpx2.Response:
    """The answer of a front over one owner and one source."""
    Network(monkeypatch, {"a:1": owner})
    front = make_front([RowSpace("shop", Layout(1), source=source)], Locations(fixed={("shop", 0): "a:1"}))
    return ask_app(make_app(front), "PUT", ROW, json=body, headers={"Freshet-Token": token} if token else {})


class KeepingOwner(FakeOwner):
    """Answers with what it was offered, from the ``accepted``-th fill on; the ones before lose the race."""

    def __init__(self, accepted: int = 1) -> None:
        super().__init__()
        self.accepted = accepted

    async def fill_rows(self, fills):  # type: ignore[no-untyped-def]
        answers = await super().fill_rows(fills)
        if len(self.fills) >= self.accepted:
            self.row = owner_row(fills[0].image, "0-1-5", "0-1-5")
        return answers


def test_a_given_row_is_read_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is the source's row of that moment, not the one that was given."""
    owner, source = KeepingOwner(), FakeRowSource(IMAGE, "0-1-5")
    answer = put(monkeypatch, owner, source, {"row": GIVEN})
    assert (answer.status_code, answer.json()["kept"], answer.json()["served_from"]) == (200, True, "cache")
    assert [fill.image for fill in owner.fills] == [IMAGE]
    assert source.reads == 1


def test_a_row_that_the_cache_proves_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folded row is compared; the source has no work with it."""
    owner, source = FakeOwner(), FakeRowSource(IMAGE, "0-1-5")
    owner.row = owner_row(IMAGE, "0-1-5", "0-1-9")
    answer = put(monkeypatch, owner, source, {"row": GIVEN})
    assert (answer.status_code, answer.json()["kept"], source.reads) == (200, True, 0)
    assert answer.headers["freshet-token"] == str(seen("shop/0", "0-1-9"))


@pytest.mark.parametrize(
    ("number", "image", "is_same"),
    [
        (1.0, b"1", True),
        (-0.0, b"0", True),
        (2.0**63, b"9223372036854776000", True),
        (1e20, b"100000000000000000000", True),
        (1e21, b"1e+21", True),
        ([{"x": 3.0}], b'[{"x":3}]', True),
        (1.5, b"1", False),
        (True, b"1", False),
        (1.0, b"true", False),
        ("1", b"1", False),
        (2.0**53, b"9007199254740993", False),
        (2**53 + 1, b"9007199254740992", False),
    ],
)
def test_a_float_without_a_fraction_is_the_number_of_its_image(
    monkeypatch: pytest.MonkeyPatch, number: object, image: bytes, is_same: bool
) -> None:
    """An image writes it without the point, which JSON of other libraries has. Nothing else is another kind's value."""
    source = FakeRowSource(b'{"id":7,"p":%b}' % image, "0-1-5")
    answer = put(monkeypatch, KeepingOwner(), source, {"row": {"id": 7, "p": number}})
    assert answer.status_code == (200 if is_same else 409)


@pytest.mark.parametrize(
    "row", [{"id": 7, "n": 0}, {"id": 7}, {"id": 7, "n": None, "m": 1}, {"id": "7", "n": None}, None]
)
def test_another_row_is_refused(monkeypatch: pytest.MonkeyPatch, row: object) -> None:
    """A value that differs, a column too few or too many, another type, an absence: 409, with a token to read with."""
    answer = put(monkeypatch, FakeOwner(), FakeRowSource(IMAGE, "0-1-9"), {"row": row})
    assert (answer.status_code, answer.json()["code"]) == (409, "fill_lost")
    assert answer.json()["token"] == str(seen("shop/0", "0-1-9"))


def test_an_absence_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """null stands for no row, and is compared as a row is."""
    answer = put(monkeypatch, FakeOwner(), FakeRowSource(None, "0-1-9"), {"row": None})
    assert (answer.status_code, answer.json()["kept"]) == (200, False)


def test_a_place_that_the_source_has_not_reached_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that lags has the given row, but does not prove it for the token."""
    answer = put(monkeypatch, FakeOwner(), FakeRowSource(IMAGE, "0-1-4"), {"row": GIVEN})
    assert (answer.status_code, answer.json()["code"]) == (503, "source_behind")


def test_a_row_without_its_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a token nothing could be proved; the source is not read."""
    source = FakeRowSource(IMAGE, "0-1-9")
    answer = put(monkeypatch, FakeOwner(), source, {"row": GIVEN}, token="")
    assert (answer.status_code, answer.json()["code"], source.reads) == (400, "bad_token", 0)
    assert put(monkeypatch, FakeOwner(), source, {"value": GIVEN}).json()["code"] == "bad_body"


def test_a_fill_that_loses_its_race_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner refused two fills, since the key had changed: the third one is kept."""
    owner, source = KeepingOwner(accepted=3), FakeRowSource(IMAGE, "0-1-5")
    answer = put(monkeypatch, owner, source, {"row": GIVEN})
    assert (answer.status_code, answer.json()["kept"], source.reads) == (200, True, 3)


def test_what_can_not_be_kept_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is the right one, and the answer says that the cache has it not."""
    source = FakeRowSource(IMAGE, "0-1-5")
    answer = put(monkeypatch, KeepingOwner(accepted=99), source, {"row": GIVEN})
    assert (answer.status_code, answer.json()["kept"], answer.json()["served_from"]) == (200, False, "source")
    assert source.reads == ATTEMPTS


def test_the_client_sends_the_rows_place_and_adopts_the_answers() -> None:
    """The demand has the row's place and all that the session has seen; the next one the answer's token, too."""
    kept = msgspec.json.encode(KeptAnswer("cache", "fresh", "why", str(vector(shop="1 0-1-8")), kept=True))
    front = Front((200, kept), problem("fill_lost"))
    session = Session(front, vector(bank="1 0-2-2"))
    answer = session.put_row("shop", "shop.items", GIVEN, 7, token=str(vector(shop="1 0-1-5")))
    assert answer.kept
    [request] = front.requests
    assert (request.method, request.path, msgspec.json.decode(request.body)) == ("PUT", ROW, {"row": GIVEN})
    assert Vector.parse(request.params["token"]) == vector(shop="1 0-1-5", bank="1 0-2-2")
    assert session.vector == vector(shop="1 0-1-8", bank="1 0-2-2")
    with pytest.raises(Conflict) as lost:
        session.put_row("shop", "shop.items", None, 7)
    assert lost.value.code == "fill_lost"


def test_only_the_owner_says_that_a_row_is_kept() -> None:
    """A follower is offered no fills, so what it has says nothing of them."""
    asked: list[ReadDemand] = []

    class Reads:
        """Has the row."""

        async def read_many(self, _: object, __: object, demand: ReadDemand) -> list[RawRowAnswer]:
            asked.append(demand)
            return [RowAnswer("cache", "fresh", "", SEEN, True, msgspec.Raw(IMAGE))]

    space, wanted = RowSpace("shop", Layout(1)), RequestedRow("shop.items", b"7")
    demand = ReadDemand(seen("shop/0", "0-1-5"), given=True, consistency="any")
    kept = asyncio.run(keep_row(cast("RowReads", Reads()), space, wanted, GIVEN, demand))
    assert (kept.kept, [each.consistency for each in asked]) == (True, ["leader"])
