"""The client's session against fronts of other versions: tokens, fields and codes that it does not know."""

from __future__ import annotations

import msgspec
import pytest

from serving.client import (
    HistoryLost,
    ServerError,
    Session,
    StreamEvent,
    Unavailable,
)
from serving.client.client import FreshetClient
from serving.client.wire import HttpRequest, read_epochs
from tests.serving.scripted_front import Front, problem, row, vector
from tests.serving.test_application_cache import TABLE, kept_by, told
from tokens import Vector

NEWER = "v9.c29tZXRoaW5n"


def test_a_token_of_a_newer_front_is_sent_back_as_it_is() -> None:
    """The client reads no token of a newer format: it demands it beside what it has seen itself."""
    front = Front(newer_row(NEWER), newer_row("v9.bmV4dA"), row(vector(shop="1 0-1-9")))
    session = Session(front, vector(bank="1 0-2-4"))
    for _ in range(3):
        session.get_row("shop", "shop.orders", 7)
    known = str(vector(bank="1 0-2-4"))
    assert [request.params["token"] for request in front.requests] == [known, f"{known},{NEWER}", f"{known},v9.bmV4dA"]
    assert session.token == str(vector(bank="1 0-2-4", shop="1 0-1-9"))


def test_a_newer_token_that_another_thread_got_stays_in_the_demand() -> None:
    """Only what a request demanded is replaced by its answer's token."""

    def front(_: HttpRequest) -> tuple[int, bytes]:
        session.adopt("v9.bWVhbndoaWxl")
        return newer_row("v9.YW5zd2Vy")

    session = Session(front, Vector(), [NEWER])
    session.get_row("shop", "shop.orders", 7)
    assert session.token == "v9.bWVhbndoaWxl,v9.YW5zd2Vy"


def test_a_session_is_handed_over_with_tokens_it_cannot_read() -> None:
    """What one client hands over, another of the same version continues."""
    handed = f"{vector(shop='1 0-1-5')},{NEWER}"
    with FreshetClient("http://front") as client:
        assert client.session(handed).token == handed
        assert client.session(client.session(NEWER).token).token == NEWER
        assert client.session("").token == client.session(None).token == str(Vector())


def test_a_session_goes_on_without_a_write_in_doubt() -> None:
    """What it has read is kept, also in tokens that it cannot read; the write that has no epoch yet is left out."""
    session = Session(Front(), vector(bank="1 0-2-4"), [NEWER])
    session.observe("shop/0", "MariaDB/0-1-5")
    assert session.known == f"{vector(bank='1 0-2-4')},{NEWER}"
    assert Session(Front(), Vector(), [NEWER]).known == NEWER
    assert Session(Front(), Vector()).known == str(Vector())


def test_an_own_write_is_placed_by_a_front_that_reads_the_newer_token() -> None:
    """The epoch of a write is the highest that the front or the newer token names: the client cannot see the latter."""
    shards = {"shop/0": {"epoch": 3, "position": "MariaDB/0-1-1"}}
    located = (200, msgspec.json.encode({"token": "v9.bG9jYXRlZA", "shards": shards}))
    front = Front(located, newer_row("v9.YW5zd2Vy"))
    session = Session(front, vector(shop="2 0-1-4"), [NEWER])
    session.observe("shop/0", "MariaDB/0-1-8")
    session.get_row("shop", "shop.orders", 7)
    assert front.requests[0].params == {"token": NEWER}
    assert front.requests[1].params["token"] == f"{vector(shop='3 0-1-8')},{NEWER}"


def test_history_lost_in_a_newer_token_replaces_what_was_demanded() -> None:
    """The new token stands for all that was demanded; what was seen meanwhile stays."""

    def front(_: HttpRequest) -> tuple[int, bytes]:
        session.adopt(str(vector(bank="1 0-2-9")))
        return problem("history_lost", "v9.bG9zdA")

    session = Session(front, vector(shop="1 0-1-9", bank="1 0-2-4"), [NEWER])
    with pytest.raises(HistoryLost):
        session.get_row("shop", "shop.orders", 7)
    assert session.token == f"{vector(bank='1 0-2-9')},v9.bG9zdA"


@pytest.mark.parametrize(("meanwhile", "is_kept"), [("1 0-1-12", False), ("2 0-1-3", True)])
def test_of_a_lost_history_nothing_is_kept_that_was_seen_meanwhile(meanwhile: str, is_kept: bool) -> None:
    """More of the same epoch is lost, too: the next read would fail as this one has. What has begun since is not."""

    def front(_: HttpRequest) -> tuple[int, bytes]:
        session.adopt(str(vector(shop=meanwhile)))
        return problem("history_lost", str(vector(bank="1 0-2-4")))

    session = Session(front, vector(shop="1 0-1-9", bank="1 0-2-4"))
    with pytest.raises(HistoryLost):
        session.get_row("shop", "shop.orders", 7)
    assert session.vector == (vector(shop=meanwhile, bank="1 0-2-4") if is_kept else vector(bank="1 0-2-4"))


def test_a_409_that_brings_nothing_new_takes_nothing_away() -> None:
    """What stands for all that was demanded may be the same text; the session goes on with it."""

    def front(request: HttpRequest) -> tuple[int, bytes]:
        return problem("history_lost", request.params["token"])

    session = Session(front, vector(bank="1 0-2-4"), [NEWER])
    with pytest.raises(HistoryLost):
        session.get_row("shop", "shop.orders", 7)
    assert session.token == f"{vector(bank='1 0-2-4')},{NEWER}"


def newer_row(token: str) -> tuple[int, bytes]:
    """A row from a front of a newer version, with fields that this one does not know."""
    answer = {"proof": {"by": "mark"}, "served_from": "cache", "freshness": "fresh", "why": "why", "token": token}
    return 200, msgspec.json.encode({**answer, "found": True, "row": {"id": 7}, "as_of_ms": 5})


@pytest.mark.parametrize("found", [True, False])
def test_the_order_of_fields_does_not_matter(found: bool) -> None:
    """An absence of a newer front is known from a problem wherever its fields stand, alone and in a batch."""
    answer = msgspec.json.decode(newer_row(str(vector()))[1]) | {"found": found}
    body = msgspec.json.encode(answer if found else answer | {"code": "not_found", "row": None})
    batch = {"served_from": "cache", "freshness": "fresh", "why": "why", "token": str(vector()), "rows": [answer]}
    front = Front((200 if found else 404, body), (200, msgspec.json.encode(batch)))
    session = Session(front, Vector())
    assert session.get_row("shop", "shop.orders", 7).found is found
    assert session.get_rows("shop", [("shop.orders", [7])])[0].found is found


def test_a_new_code_of_a_newer_front_has_the_type_of_its_status() -> None:
    """An element of a batch says its status itself, since the client may not know the code."""
    element = {"code": "too_cold", "message": "m", "hint": "h", "status": 503}
    batch = {"served_from": "cache", "freshness": "unknown", "why": "w", "token": str(vector()), "rows": [element]}
    with pytest.raises(Unavailable) as caught:
        Session(Front((200, msgspec.json.encode(batch))), Vector()).get_rows("shop", [("shop.orders", [7])])
    assert (caught.value.code, caught.value.status) == ("too_cold", 503)


def test_a_location_of_an_older_front_is_read_from_its_token() -> None:
    """It says epochs in the token only; a token that can't be read is an error of the front."""
    located = (200, msgspec.json.encode({"token": str(vector(shop="2 0-1-1", bank="3 0-1-1"))}))
    assert read_epochs(*located) == {"shop/0": 2, "bank/0": 3}
    with pytest.raises(ServerError) as caught:
        read_epochs(200, msgspec.json.encode({"token": "v1.???"}))
    assert caught.value.code == "bad_answer"
    shards = {"shop/0": {"epoch": 4, "position": "MariaDB/0-1-1"}}
    assert read_epochs(200, msgspec.json.encode({"token": located[1].decode(), "shards": shards})) == {"shop/0": 4}


def test_a_row_with_a_token_that_cannot_be_read_is_given_past_the_applications_cache() -> None:
    """Its front is newer than the application: the row is its reader's, and nobody here can tell what to keep it as."""
    front = Front(*[newer_row(NEWER)] * 4)
    cache, invalidator = kept_by(front)
    invalidator.apply(told(1, 5))
    for _ in range(2):
        session = Session(front, vector(shop="1 0-1-5"))
        found = cache.get_row(session, TABLE, 7)
        assert (found.value, found.from_store) == ({"id": 7}, False)
        assert session.token == f"{vector(shop='1 0-1-5')},{NEWER}"


def test_a_watermark_that_cannot_be_read_ends_no_invalidator() -> None:
    """It says nothing then. What is changed is told as before, and goes on to be invalidated."""
    _, invalidator = kept_by(Front())
    invalidator.apply(told(1, 5))
    known = invalidator.state
    invalidator.apply(StreamEvent("watermark", token=NEWER))
    assert invalidator.state == known
    invalidator.apply(StreamEvent("watermark", token=f"{vector(shop='1 0-1-6')},{NEWER}"))
    assert invalidator.state.endswith(str(vector(shop="1 0-1-6")))
