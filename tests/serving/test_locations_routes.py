"""`/v1/locations` over HTTP, on a front that knows what a test installs (L19, L23, L24)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from consumers.owner.client import Identity
from serving.http.app import make_app
from serving.http.front import Front, make_front
from serving.locations.places import Key, Kind, Location, Origin, Replica, Version
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from stream.access.grants import Access, Credential, Grant, digest_of
from stream.access.networks import networks_of
from stream.wire.keys import Layout
from tests.serving.locations.places import led_by
from tests.serving.locations.test_refreshing import Topic


class Asked:
    """A front of the keyspace shop with two partitions, over a topic that the test sets."""

    def __init__(self, *known: Location, access: Access | None = None) -> None:
        self.access = access
        self.identity: Identity | None = None
        self.topic = Topic(*known)
        self.topic.change = 1 if known else 0
        self.locations = Locations(self.topic, fixed={("fixed", 0): "f:1"})

    def __call__(self, method: str, path: str, **options: Any) -> httpx2.Response:
        async def story() -> httpx2.Response:
            front: Front = make_front(
                [RowSpace("shop", Layout(2)), RowSpace("fixed", Layout(1))],
                self.locations,
                access=self.access,
                identity=self.identity,
            )
            front.locations.listens_at("front:8480")
            async with httpx2.AsyncClient(
                transport=httpx2.ASGITransport(make_app(front)), base_url="http://f"
            ) as client:
                return await asyncio.wait_for(client.request(method, path, **options), 20)

        return asyncio.run(story())

    def places(self, path: str) -> dict[str, str]:
        """Entity, keyspace and partition → address."""
        answer = self("GET", path)
        assert answer.status_code == 200, answer.text
        return {f"{p['entity']} {p['keyspace']}/{p['partition']}": p["address"] for p in answer.json()["locations"]}


def test_what_is_known_is_shown_with_its_reason() -> None:
    """Without asking anybody."""
    asked = Asked(led_by("a", 5, "b", term=2))
    [place] = [each for each in asked("GET", "/v1/locations").json()["locations"] if each["keyspace"] == "shop"]
    assert (place["address"], place["epoch"], place["term"], place["followers"]) == ("a:1", 5, 2, ["b:1"])
    assert place["why"].startswith("said by its announcement, confirmed ")
    assert not asked.topic.reads


@pytest.mark.parametrize(
    ("front", "told"),
    [
        ("http://10.0.3.7:8480", "http://10.0.3.7:8480"),
        ("https://[fd00::7]:8480", "https://[fd00::7]:8480"),
        ("https://11.0.3.7:8480", ""),
        ("https://elsewhere.example.org", ""),
        ("https://10.0.3.7@elsewhere.example.org", ""),
        ("https://[elsewhere", ""),
    ],
)
def test_clients_are_told_of_no_front_elsewhere(front: str, told: str) -> None:
    """They would show it their token; whoever can write announcements can name any. Without networks all are told."""
    asked = Asked(led_by("a", 5))
    asked.locations.front_of = lambda _, __: front
    for networks, expected in ((("10.0.0.0/8", "fd00::/8"), told), ((), front)):
        asked.identity = Identity(lambda: "", None, networks_of(networks))
        [route] = asked("GET", "/v1/routes/shop").json()["routes"]
        assert route["leader"]["front"] == expected


def test_clients_are_sent_to_no_owner_that_has_withdrawn() -> None:
    """A front tries its last address, for it may come back there; a client asks a follower, or its own front."""
    asked = Asked(led_by("a", 5, "b"))
    asked.locations.follow()
    asked.topic.announce(led_by("a", 5, "b")._replace(gone=True))
    [route] = asked("GET", "/v1/routes/shop").json()["routes"]
    assert (route["leader"], [each["instance"] for each in route["followers"]]) == (None, ["b"])


def test_places_of_no_keyspace_are_forgotten_with_the_others() -> None:
    """Where announcements are concerns every keyspace: whoever asks to forget all of it is asked for it anew."""
    topic = Topic()

    async def story() -> None:
        front = make_front([RowSpace("shop", Layout(2))], Locations(topic))
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(make_app(front)), base_url="http://f") as client:
            for _ in range(2):
                await client.get("/v1/locations?entity=root")
            assert len(topic.reads) == 1
            await client.post("/v1/locations:refresh", json={"flush": True})
            await client.get("/v1/locations?entity=root")
            assert len(topic.reads) == 2

    asyncio.run(asyncio.wait_for(story(), 20))


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("entity=local", {"local /0": "front:8480"}),
        ("entity=distributed", {"instance /0": "f:1"}),
        ("entity=root", {"locations /0": "k:9092"}),
        ("entity=events&keyspace=shop&partition=1", {"events shop/1": "k:9093"}),
        ("entity=keyspace&keyspace=shop", {"keyspace shop/0": "a:1"}),
        ("entity=partition&keyspace=shop&partition=1&force=true", {"partition shop/1": "b:1"}),
    ],
)
def test_one_entity_is_found(query: str, shown: dict[str, str]) -> None:
    """Virtual ones by rule, others by the topic."""
    asked = Asked()
    asked.topic.known = {
        each.key: each
        for each in (
            Location(Key("", 0, Kind.LOCATIONS), Version(), Replica("k:9092")),
            Location(Key("shop", 1, Kind.EVENTS), Version(), Replica("k:9093")),
            Location(Key("shop", 0, Kind.KEYSPACE), Version(), Replica("a:1")),
            led_by("b", key=Key("shop", 1)),
        )
    }
    assert asked.places(f"/v1/locations?{query}") == shown


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("entity=partition&keyspace=shop", 404, "location_unknown"),
        ("entity=partition&keyspace=bank", 404, "unknown_keyspace"),
        ("entity=partition&keyspace=shop&partition=2", 404, "unknown_path"),
        ("entity=everything", 400, "bad_parameter"),
    ],
)
def test_what_is_not_there_is_an_error(query: str, status: int, code: str) -> None:
    """With a code and a status of its own."""
    answer = Asked()("GET", f"/v1/locations?{query}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_waiting_for_an_owner_ends_with_no_owner() -> None:
    """After the time that the request gave."""
    answer = Asked()("GET", "/v1/locations/shop/0?wait_ms=50")
    assert (answer.status_code, answer.json()["code"]) == (503, "no_owner")
    assert "waited 50 ms" in answer.json()["message"]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ({}, 3),
        ({"keyspace": "shop"}, 2),
        ({"keyspace": "shop", "partition": 1}, 1),
        ({"server": "a:1"}, 1),
        ({"keyspace": "x"}, 0),
    ],
)
def test_what_is_chosen_is_refreshed(body: dict[str, Any], count: int) -> None:
    """All, a keyspace, a partition, or what names an address."""
    asked = Asked(led_by("a"), led_by("b", key=Key("shop", 1)))
    assert asked("POST", "/v1/locations:refresh", json=body).json() == {"locations": count}
    assert sum(asked.locations.cache.counts[each] for each in ("renew_queued", "renew_ignored")) == count


def test_what_is_flushed_is_forgotten() -> None:
    """And learnt again from what is announced; an entry of the settings stays."""
    asked = Asked(led_by("a", 1))
    asked.locations.follow()
    asked.locations.cache.install(led_by("z", 9), Origin.HINT, 0.0, asked.locations.clock())
    assert asked.places("/v1/locations")["partition shop/0"] == "z:1"
    assert asked("POST", "/v1/locations:refresh", json={"flush": True}).json() == {"locations": 1}
    assert asked.places("/v1/locations") == {"partition fixed/0": "f:1", "partition shop/0": "a:1"}


def test_a_caller_sees_and_refreshes_what_it_may() -> None:
    """Nothing of another keyspace shows, no address either; only an administrator has something refreshed."""
    roles = {"shop": "read", "root": "admin"}
    grants = {name: Grant(name, frozenset({role}), frozenset({"shop"})) for name, role in roles.items()}
    access = Access([Credential(grant, digest_of(name.encode())) for name, grant in grants.items()])
    asked = Asked(led_by("a"), led_by("b", key=Key("shop", 1)), access=access)
    headers = {name: {"authorization": f"Bearer {name}"} for name in roles}
    shown = asked("GET", "/v1/locations", headers=headers["shop"]).json()["locations"]
    assert {each["keyspace"] for each in shown} == {"shop"}
    instances = asked("GET", "/v1/locations?entity=distributed", headers=headers["shop"]).json()["locations"]
    assert [each["address"] for each in instances] == ["a:1", "b:1"]
    assert asked("POST", "/v1/locations:refresh", json={}, headers=headers["shop"]).status_code == 403
    assert asked("POST", "/v1/locations:refresh", json={}, headers=headers["root"]).json() == {"locations": 2}


def test_metrics_show_what_the_cache_does() -> None:
    """L24: events, what is known, what waits, what is down."""
    asked = Asked(led_by("a"))
    asked("GET", "/v1/locations")
    text = asked("GET", "/metrics").text
    for line in (
        'freshet_serve_locations_events_total{event="installed_push"} 1.0',
        "freshet_serve_locations_known 2.0",
        'freshet_serve_locations_queued{priority="failing"} 0.0',
    ):
        assert line in text.splitlines()
    assert "\nfreshet_serve_instances_down " in text
    assert '\nfreshet_serve_locations_age_seconds_bucket{le="600.0"} ' in text
