"""What HTTP has for it: the token in headers, HEAD, ETag, OPTIONS, and what caches on the way are told."""

from __future__ import annotations

from typing import Any

import httpx2
import msgspec
import pytest

from serving.http.app import make_app
from serving.http.front import Front, make_front
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace, TableSpace
from stream.wire.keys import Layout
from tests.serving.asking import ask_app
from tests.serving.fakes import FakeOwner, FakeRowSource, Network, owner_row, owner_table, seen
from tests.serving.test_app import ask, refused
from tokens import EventToken, Position, Vector

ROW = "/v1/rows/shop/items/7"
TABLE = "/v1/tables/d/t"
IMAGE = b'{"id":7}'
SEEN = seen("shop/0", "0-1-5")


class Asking:
    """A front over one owner of rows and tables, which keeps the vectors that it was asked with."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, source: FakeRowSource | None = None) -> None:
        self.owner = FakeOwner(watermarks=seen("shop/0", "0-1-9", epoch=2))
        self.owner.row = owner_row(IMAGE, "0-1-5", "0-1-9")
        self.owner.table = owner_table(b'{"t":1}')
        self.demanded: list[str] = []
        get = self.owner.get

        async def keeping(keyspace: str, partition: int, keys: list[bytes], vector: str, *rest: object) -> Any:
            self.demanded.append(vector)
            return await get(keyspace, partition, keys, vector, *rest)

        monkeypatch.setattr(self.owner, "get", keeping)
        Network(monkeypatch, {"a:1": self.owner})
        self._source = source

    def front(self) -> Front:
        spaces: list[RowSpace | TableSpace] = [
            RowSpace("shop", Layout(1), "shop", self._source),
            TableSpace("hive", Layout(1)),
        ]
        return make_front(spaces, Locations(fixed={("shop", 0): "a:1", ("hive", 0): "a:1"}))

    def __call__(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return ask_app(make_app(self.front()), method, path, **options)


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Asking:
    return Asking(monkeypatch)


def test_the_token_travels_in_the_header(asking: Asking) -> None:
    """A header is a demand like the parameter, and the answer's header is the answer's token."""
    answer = asking("GET", ROW, headers={"Freshet-Token": str(SEEN)})
    assert asking.demanded == [str(SEEN)]
    assert answer.headers["freshet-token"] == answer.json()["token"] == str(seen("shop/0", "0-1-9"))
    assert answer.headers["freshet-freshness"] == answer.json()["freshness"]
    assert answer.headers["freshet-served-from"] == answer.json()["served_from"]


def test_all_tokens_of_a_request_count(asking: Asking) -> None:
    """A token in the URL, several in headers, and one in a body are merged: none of them is passed over."""
    till, bank = seen("till/0", "0-3-1"), seen("bank/0", "0-2-9")
    headers = [("freshet-token", str(bank)), ("freshet-token", f"{till}, {SEEN}")]
    asking("GET", ROW, params={"token": str(seen("shop/0", "0-1-2"))}, headers=headers)
    assert asking.demanded == [str(SEEN.merge(till).merge(bank))]
    keys = [{"table": "items", "pk": 7}]
    asking("POST", "/v1/rows/shop:batch", json={"keys": keys, "token": str(till)}, headers=headers[:1])
    assert asking.demanded[1] == str(till.merge(bank))
    asking("POST", "/v1/rows/shop:batch", json={"keys": keys}, headers=headers[1:])
    assert asking.demanded[2] == str(SEEN.merge(till))


@pytest.mark.parametrize("path", [ROW, TABLE, "/v1/locations/shop/0"])
def test_a_wrong_header_is_refused_like_a_wrong_parameter(asking: Asking, path: str) -> None:
    """A damaged demand never becomes a read without one."""
    for text in ("rubbish", f"{SEEN}x", f"{SEEN},v9.AAAA"):
        assert refused(asking("GET", path, headers={"freshet-token": text}), 400, "bad_token")
    assert not asking.demanded


def test_no_cache_on_the_way_keeps_an_answer(asking: Asking) -> None:
    """An answer holds for one token at one time; errors too."""
    for answer in (asking("GET", ROW), asking("GET", TABLE), asking("GET", "/nowhere"), asking("GET", "/healthz")):
        assert (answer.headers["cache-control"], answer.headers["vary"]) == ("no-store", "Freshet-Token")


@pytest.mark.parametrize("path", [ROW, TABLE])
def test_what_the_reader_has_is_not_sent_again(asking: Asking, path: str) -> None:
    """304 has no body and the whole proof of a new read; another image has another tag."""
    first = asking("GET", path)
    held = asking("GET", path, headers={"if-none-match": f'W/"other", {first.headers["etag"]}'})
    assert (first.status_code, held.status_code, held.content) == (200, 304, b"")
    for name in ("freshet-token", "freshet-freshness", "freshet-served-from", "etag", "cache-control", "vary"):
        assert held.headers[name] == first.headers[name]
    assert held.headers["freshet-why"] == first.json()["why"]
    for same in ("*", f"W/{first.headers['etag']}"):  # whoever compresses answers on the way makes tags weak
        assert asking("GET", path, headers={"if-none-match": same}).status_code == 304
    asking.owner.row = owner_row(b'{"id":8}', "0-1-5", "0-1-9")
    asking.owner.table = owner_table(b'{"t":1}', table_id=8)
    again = asking("GET", path, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.headers["etag"] != first.headers["etag"]) == (200, True)


def test_an_image_that_is_valid_for_another_list_has_another_tag(asking: Asking) -> None:
    """The reader takes the write-id list from the answer: with a 304 it would keep the old one."""
    first = asking("GET", TABLE)
    asking.owner.table = msgspec.structs.replace(asking.owner.table, write_ids="d.t:9:9223372036854775807::")
    again = asking("GET", TABLE, headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.headers["etag"] != first.headers["etag"]) == (200, True)


def test_nothing_is_confirmed_without_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """If-None-Match shortens an answer that was given, never a refusal or an absence."""
    asking = Asking(monkeypatch, FakeRowSource(IMAGE, "0-1-5"))
    tag = asking("GET", ROW).headers["etag"]
    asking.owner.row, asking.owner.watermarks = owner_row(None, "0-1-1", "0-1-1"), str(seen("shop/0", "0-1-1"))
    behind = {"if-none-match": f"{tag}, *", "freshet-token": str(seen("shop/0", "0-1-7"))}
    assert refused(asking("GET", ROW, headers=behind), 503, "source_behind")
    from_source = asking("GET", ROW, headers={"if-none-match": tag, "freshet-token": str(seen("shop/0", "0-1-5"))})
    assert (from_source.status_code, from_source.headers["freshet-served-from"]) == (304, "source")


def test_a_row_with_more_in_its_answer_has_another_tag(asking: Asking) -> None:
    """An event token that was asked for is part of what the tag names."""
    plain, more = asking("GET", ROW), asking("GET", ROW, params={"include_event_token": "true"})
    assert plain.headers["etag"] != more.headers["etag"]


def test_a_row_that_has_become_as_new_as_the_readers_token_has_another_tag(asking: Asking) -> None:
    """Its image may be the same: by a 304 the reader would go on taking it for an older one."""
    compared = {"compare_event_token": str(EventToken(1, "shop/0", Position.parse("MariaDB/0-1-7"), epoch=1))}
    asking.owner.row = owner_row(IMAGE, "0-1-5", "0-1-6")
    first = asking("GET", ROW, params=compared)
    asking.owner.row = owner_row(IMAGE, "0-1-8", "0-1-9")
    again = asking("GET", ROW, params=compared, headers={"if-none-match": first.headers["etag"]})
    assert (first.json()["fresher"], again.status_code) == (False, 200)
    assert again.json()["fresher"] is True


@pytest.mark.parametrize("path", [ROW, TABLE, "/v1/locations/shop/0", "/healthz", "/metrics", "/openapi.json"])
def test_head_is_get_without_a_body(asking: Asking, path: str) -> None:
    """A HEAD makes the read and its proof, and answers with GET's status and headers."""
    get, head = asking("GET", path), asking("HEAD", path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    if path != "/metrics":
        assert head.headers == get.headers


def test_a_refused_head_has_no_body_either() -> None:
    """Errors of the guard and of handlers."""
    for path, options, status in ((ROW, {}, 503), ("/nowhere", {}, 404), (ROW, {"bearer_token": "secret"}, 401)):
        answer = ask("HEAD", path, **options)
        assert (answer.status_code, answer.content) == (status, b"")


def test_options_names_the_methods(asking: Asking) -> None:
    """OPTIONS of a path is what a 405 says in Allow."""
    for path, allowed in ((ROW, "GET, HEAD, OPTIONS, PUT"), ("/v1/rows/shop:batch", "OPTIONS, POST")):
        answer = asking("OPTIONS", path)
        assert (answer.status_code, answer.headers["allow"], answer.content) == (204, allowed, b"")
        assert asking("DELETE", path).headers["allow"] == allowed


def test_a_location_says_epochs_and_positions(asking: Asking) -> None:
    """Whoever makes a token by hand learns the shard's epoch here; a newer one that the session knows counts."""
    found = asking("GET", "/v1/locations/shop/0")
    assert found.json()["shards"] == {"shop/0": {"epoch": 2, "position": "MariaDB/0-1-9"}}
    assert Vector.parse(found.headers["freshet-token"]) == seen("shop/0", "0-1-9", epoch=2)
    newer = asking("GET", "/v1/locations/shop/0", headers={"freshet-token": str(seen("shop/0", "0-1-3", epoch=4))})
    assert newer.json()["shards"] == {"shop/0": {"epoch": 4, "position": "MariaDB/0-1-3"}}
