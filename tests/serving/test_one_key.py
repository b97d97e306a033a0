"""The page of one key: what the owner holds, said without asking the source, and only to whoever may read it."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from consumers.fold.entry import VOID
from consumers.owner.protocol import HISTORY_LOST, Description, OwnerError, OwnerRow, SchemaColumn
from serving.http.app import make_app
from serving.http.front import make_front
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from stream.access.grants import READ, Access, Credential, Grant, digest_of
from stream.wire.keys import Layout, row_key
from tests.serving.asking import client_of
from tests.serving.fakes import FakeOwner, FakeRowSource, Network, owner_row, seen

HERE = {"keyspace": "shop", "table": "shop.items", "key": "7"}


def asked(
    monkeypatch: pytest.MonkeyPatch, owner: FakeOwner, parameters: dict[str, str], access: Access | None = None
) -> tuple[httpx2.Response, FakeRowSource]:
    """The page, and the source that it must not have asked."""
    source = FakeRowSource(b"{}", "0-1-5")
    Network(monkeypatch, {"a:1": owner})
    front = make_front(
        [RowSpace("shop", Layout(1), source=source)], Locations(fixed={("shop", 0): "a:1"}), access=access
    )

    async def story() -> httpx2.Response:
        async with client_of(make_app(front)) as client:
            return await client.get("/key", params=parameters, auth=("me", "some") if access else None)

    return asyncio.run(story()), source


def test_it_tells_what_is_held_and_asks_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row, its place in history, and the decision with its why."""
    owner = FakeOwner()
    owner.row = owner_row('{"id":7,"note":"<b>é"}'.encode(), "0-1-5", "0-1-9")
    owner.row.timestamp, owner.row.as_of_ms = 1_700_000_000, 1_700_000_060_500
    page, source = asked(monkeypatch, owner, HERE)
    assert page.status_code == 200
    for words in (
        "may be served: fresh",
        "MariaDB/0-1-5",
        "MariaDB/0-1-9",
        "shop/0",
        "&lt;b&gt;é",
        "a row",
        "22:13:20",
        "22:14:20",
    ):
        assert words in page.text, words
    assert "<b>" not in page.text
    assert source.reads == 0
    assert owner.fills == []
    assert page.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_row_that_may_not_be_served_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a void hides is said to be unknown; the page is no way around the proof."""
    owner = FakeOwner()
    owner.row = owner_row(None, "0-1-5", "0-1-5")
    owner.row.kind, owner.row.why = VOID, "voided at ordinal 9"
    page, _ = asked(monkeypatch, owner, HERE | {"token": str(seen("shop/0", "0-1-7"))})
    assert "may not be served: unknown" in page.text
    assert "not known to what" in page.text
    assert "voided at ordinal 9" in page.text


def test_without_a_key_it_is_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each field has a label; nobody is asked."""
    owner = FakeOwner()
    page, _ = asked(monkeypatch, owner, {})
    assert page.status_code == 200
    for name in ("keyspace", "table", "key", "token"):
        assert f'<label for="{name}">' in page.text
        assert f'id="{name}"' in page.text
    assert owner.asked == []


@pytest.mark.parametrize(
    ("wrong", "status", "code"),
    [
        ({"keyspace": "shpo"}, 404, "unknown_keyspace"),
        ({"key": "seven"}, 400, "bad_key"),
        ({"key": "7,8"}, 400, "bad_key"),
        ({"token": "no token"}, 400, "bad_token"),
    ],
)
def test_wrong_input_is_said_on_the_page(
    monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str], status: int, code: str
) -> None:
    """With the code of the API, and what was typed still in the form."""
    page, _ = asked(monkeypatch, FakeOwner(), HERE | wrong)
    assert (page.status_code, code in page.text) == (status, True)
    assert all(f'value="{value}"' in page.text for value in wrong.values())


def test_an_owner_that_is_away_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The description comes from the source then, and nothing is told of the key."""
    page, _ = asked(monkeypatch, FakeOwner(failure=OwnerError("away", code="owner_unreachable")), HERE)
    assert page.status_code in (404, 503)
    assert 'role="alert"' in page.text


def test_a_history_that_is_lost_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of another history is answered by the owner's words, not by an error of the page."""
    owner = FakeOwner()
    owner.row = owner_row(None, "0-1-5", "0-1-5", epoch=2)
    owner.row.code = HISTORY_LOST
    page, _ = asked(monkeypatch, owner, HERE | {"token": str(seen("shop/0", "0-1-7"))})
    assert page.status_code == 200
    assert "may not be served" in page.text


def test_a_keyspace_that_the_caller_may_not_see_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the API: 404, and its name is not offered."""
    grant = Grant("some", frozenset({READ}), frozenset({"other"}))
    access = Access([Credential(grant, digest_of(b"some"))])
    page, _ = asked(monkeypatch, FakeOwner(), HERE, access)
    assert (page.status_code, "unknown_keyspace" in page.text) == (404, True)
    assert '<option value="shop">' not in page.text


class Asked(FakeOwner):
    """An owner of a table with a key of text. ``keys``: that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.description = Description(0, True, "", "shop.items", [SchemaColumn("id", "text", True)], ["id"], True)
        self.keys: list[bytes] = []

    async def get(self, keyspace: str, partition: int, keys: list[bytes], *more: object) -> list[OwnerRow]:
        self.keys += keys
        return await super().get(keyspace, partition, keys, *more)


@pytest.mark.parametrize(("typed", "key"), [("a%2Cb", "a,b"), ("Müller & Co", "Müller & Co"), ("100%", "100%")])
def test_a_key_is_typed_as_it_is_and_what_ends_a_column_as_in_a_path(
    monkeypatch: pytest.MonkeyPatch, typed: str, key: str
) -> None:
    """Else a row with a comma in its key could not be looked at."""
    owner = Asked()
    page, _ = asked(monkeypatch, owner, HERE | {"key": typed})
    assert (page.status_code, owner.keys) == (200, [row_key("shop.items", [key])])
