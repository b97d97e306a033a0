"""The status API and the page: what owners tell, the worst first, and a day of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

import serving.http.status.page as page
from consumers.owner.protocol import PartitionStatus, ShardStatus, Statuses, Verdict
from serving.http.app import make_app
from serving.http.front import make_front
from serving.http.routes import ROUTES
from serving.http.status.answers import (
    BackfillState,
    FrontStatus,
    KeyspaceHistory,
    KeyspaceStatus,
    PartitionHistory,
    PartitionState,
    ShardState,
    StatusEvent,
    StatusHistory,
)
from serving.http.status.backfills import told as told_backfills
from serving.http.status.rings import LOOK_S, STEP_S
from serving.http.status.watch import Watch
from serving.locations.refreshing import Locations
from serving.metrics import FrontMetrics
from serving.reads.owners import OwnerAway, Owners
from serving.reads.spaces import RowSpace
from stream.access.grants import READ, Access, Credential, Grant, digest_of
from stream.wire.events import ResumePoint
from stream.wire.keys import Layout
from tests.serving.asking import ask_app, client_of

NOW = 1_000_000.0
HTMX = "d6fdc75f204e6bdefa99b69bf1e6d4ac69b8a364f77929f45c13476b4000f717"
"""SHA-256 of dist/htmx.min.js in the npm package htmx.org 2.0.11."""


def told(
    partition: int, *ages_s: float | None, behind: int = 0, tables: dict[str, bool] | None = None
) -> PartitionStatus:
    """An owner's word on a partition: of each shard how old the source's clock in its watermark is."""
    shards = [
        ShardStatus(f"shop/{at}", 1, 5, "MariaDB/0-1-5", 0, "", 0.0, int((NOW - age) * 1000) if age is not None else 0)
        for at, age in enumerate(ages_s)
    ]
    counts = (0, 0, 100 - behind, 100, True, "following", shards, 7, 0, 3, 0, "", "")
    return PartitionStatus("shop", partition, *counts, 0.0, tables or {})


class AskedOwners(Owners):
    """Owners that tell what a test sets: address → statuses, None: it does not answer."""

    def __init__(self, of: dict[str, list[PartitionStatus] | None], places: dict[int, str]) -> None:
        super().__init__(Locations(fixed={("shop", number): each for number, each in places.items()}), FrontMetrics())
        self.of, self.places, self.asked = of, places, list[str]()

    async def ask(self, _: str, partition: int, __: Callable[[Any], Awaitable[Any]]) -> Any:
        address = self.places[partition]
        self.asked.append(address)
        if self.of[address] is None:
            raise OwnerAway("it does not answer")
        return Statuses(0, True, "", self.of[address] or [])


def watch_of(
    of: dict[str, list[PartitionStatus] | None], places: dict[int, str], clock: Callable[[], float] = lambda: NOW
) -> Watch:
    """A watch of the keyspace shop, with four partitions."""
    owners = AskedOwners(of, places)
    return Watch(owners, {"shop": RowSpace("shop", Layout(4), "shop")}, owners._metrics, clock)


def test_the_worst_partition_comes_first() -> None:
    """Without an owner, then silent, then of unknown age, then old: and each owner is asked once."""
    of: dict[str, list[PartitionStatus] | None] = {"a:1": [told(0, 2.0, 0.5), told(1, 9.0, None)], "b:1": None}
    watch = watch_of(of, {0: "a:1", 1: "a:1", 2: "b:1"})
    look = asyncio.run(watch.look())
    assert {each.partition for each in look.partitions[:2]} == {2, 3}
    assert [each.state for each in look.partitions] == ["away", "away", "ready", "ready"]
    assert [(each.partition, each.age_s) for each in look.partitions[2:]] == [(1, None), (0, 2.0)]
    assert watch._owners.asked == ["a:1", "b:1"]  # type: ignore[attr-defined]


def test_the_metrics_tell_for_how_many_partitions_nobody_answers() -> None:
    """A front that was ready stays so: without that the loss of a keyspace's last consumer raised no alert."""
    now = [NOW]
    of: dict[str, list[PartitionStatus] | None] = {"a:1": [told(at, 1.0) for at in range(4)]}
    watch = watch_of(of, dict.fromkeys(range(4), "a:1"), lambda: now[0])
    for answers, away in ((of["a:1"], 0), ([told(0, 1.0)], 3), (None, 4)):
        of["a:1"] = answers
        now[0] += 10
        asyncio.run(watch.look())
        assert f'freshet_serve_partitions_away{{keyspace="shop"}} {away}.0' in watch._metrics.exposition().decode()


def test_a_shard_that_is_as_new_as_now_does_not_hide_one_that_is_unknown() -> None:
    """An age of zero is a clock, too: the partition's age is unknown, so it comes before one that is old."""
    watch = watch_of({"a:1": [told(0, 2.0), told(1, 0.0, None)]}, {0: "a:1", 1: "a:1", 2: "a:1", 3: "a:1"})
    look = asyncio.run(watch.look())
    assert [each.partition for each in look.partitions if each.state == "ready"] == [1, 0]


def test_many_readers_cost_the_owners_one_question() -> None:
    """What was seen a moment ago serves whoever asks next, and not for longer."""
    now = [NOW]
    watch = watch_of({"a:1": [told(0, 1.0)]}, dict.fromkeys(range(4), "a:1"), lambda: now[0])

    async def looks() -> None:
        await asyncio.gather(*(watch.look() for _ in range(9)))
        now[0] += 0.5
        await watch.look()
        assert len(watch._owners.asked) == 1  # type: ignore[attr-defined]
        now[0] += 0.6
        await watch.look()
        assert len(watch._owners.asked) == 2  # type: ignore[attr-defined]

    asyncio.run(looks())


def test_an_hour_is_remembered_and_no_more() -> None:
    """Counts are of each step; what is older than an hour is gone, and memory is bounded."""
    now = [NOW]
    watch = watch_of(
        {"a:1": [told(at, 1.0, behind=at) for at in range(4)]}, dict.fromkeys(range(4), "a:1"), lambda: now[0]
    )

    async def hours() -> None:
        for _ in range(500):
            watch._metrics.answered("row", "cache", "fresh", 3)
            watch._metrics.answered("range", "source", "fresh")
            watch._metrics.refused("no_owner")
            watch._metrics.missed("row", "void")
            watch.remember(await watch.look())
            now[0] += LOOK_S

    asyncio.run(hours())
    history = watch.history(["shop"])
    assert len(history.at) == 3_600 / LOOK_S - 1
    assert min(history.at) > now[0] - 3_600
    assert (set(history.cache[1:]), set(history.source[1:]), set(history.refused[1:])) == ({3}, {1}, {1})
    assert set(history.misses["void"][1:]) == {1}
    assert watch.history([]).misses == {}  # counted for all keyspaces together
    [shop] = history.keyspaces
    assert set(shop.behind) == {3}
    assert shop.age_s == sorted(shop.age_s, key=lambda each: each or 0)
    assert watch.history([]).keyspaces == []


def test_a_day_is_told_with_fewer_points_and_the_same_counts() -> None:
    """Five minutes are one point: the worst age in them, and all their answers."""
    now = [NOW]
    watch = watch_of({"a:1": [told(at, 1.0) for at in range(4)]}, dict.fromkeys(range(4), "a:1"), lambda: now[0])

    async def hours() -> None:
        for _ in range(500):
            watch._metrics.answered("row", "cache", "fresh")
            watch._metrics.missed("row", "void")
            watch.remember(await watch.look())
            now[0] += LOOK_S

    asyncio.run(hours())
    for asked in (6, 24):
        history = watch.history(["shop"], asked)
        assert (history.hours, history.step_s) == (asked, STEP_S[asked])
        assert len(history.at) == -(-500 * LOOK_S // history.step_s)
        assert (sum(history.cache), sum(history.misses["void"])) == (500, 500)


def test_the_partitions_that_were_the_oldest_are_told_first() -> None:
    """Who was unknown was at least as old as that takes: of as many as are asked for, and each with its ages."""
    owner = [told(0, 1.0), told(1, 1.0), told(2, None), told(3, 90.0)]
    now = [NOW]
    watch = watch_of({"a:1": owner}, dict.fromkeys(range(4), "a:1"), lambda: now[0])
    watch.remember(asyncio.run(watch.look()))
    now[0] += LOOK_S
    owner[2], owner[3] = told(2, 1.0), told(3, 1.0)
    watch.remember(asyncio.run(watch.look()))
    [shop] = watch.history(["shop"], partitions=3).keyspaces
    assert [(each.partition, each.age_s, each.unknown) for each in shop.partitions] == [
        (3, [90.0, 1.0 + LOOK_S], [0, 0]),
        (0, [1.0, 1.0 + LOOK_S], [0, 0]),
        (1, [1.0, 1.0 + LOOK_S], [0, 0]),
    ]
    assert msgspec.json.decode(msgspec.json.encode(watch.history(["shop"])), type=StatusHistory).keyspaces
    [shop] = watch.history(["shop"], 24, 1).keyspaces
    assert (shop.age_s, shop.unknown) == ([1.0 + LOOK_S], [1])  # of all but the look at which one was unknown
    assert [(each.partition, each.age_s, each.unknown) for each in shop.partitions] == [(3, [90.0], [0])]
    for _ in range(12):
        now[0] += LOOK_S
        owner[:] = [told(2, None), *(told(each, NOW - now[0] + 1.0) for each in (0, 1, 3))]
        watch.remember(asyncio.run(watch.look()))
    [shop] = watch.history(["shop"], partitions=2).keyspaces
    assert [(each.partition, sum(each.unknown)) for each in shop.partitions] == [(2, 13), (3, 0)]
    told_to_programs = msgspec.json.encode(watch.history(["shop"], partitions=2))
    assert msgspec.json.decode(told_to_programs, type=StatusHistory).keyspaces == [shop]


def test_a_catalog_whose_source_tells_no_clock_has_no_oldest_partitions() -> None:
    """What nobody can know is not told as a failure; where one partition has a clock, the others are missed."""
    owner = [told(at, None) for at in range(4)]
    watch = watch_of({"a:1": owner}, dict.fromkeys(range(4), "a:1"))
    watch.remember(asyncio.run(watch.look()))
    assert watch.history(["shop"], partitions=4).keyspaces[0].partitions == []


def test_a_line_ends_where_an_age_was_unknown_and_its_words_tell_for_how_long() -> None:
    """A point of five minutes with one such look is a gap, though the age of the other looks still counts."""
    at = [NOW + 300 * each for each in range(4)]
    shop = KeyspaceHistory("shop", [0.0, 0.0, 900.0, 0.0], [0] * 4, [0, 0, 20, 0])
    [chart] = page.charts_of(StatusHistory(at, [], [], [], [shop], hours=24, step_s=300))
    assert chart.text == "at most 900.0 s, unknown for 200 s"
    assert [points.count(",") for _, points in chart.lines] == [2, 1]


def test_partitions_beyond_what_is_remembered_still_count_for_their_keyspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, and the worst age of the keyspace is still that of all."""
    monkeypatch.setattr("serving.http.status.watch.PARTITIONS_MAX", 2)
    watch = watch_of({"a:1": [told(at, 1.0 + at) for at in range(4)]}, dict.fromkeys(range(4), "a:1"))
    watch.remember(asyncio.run(watch.look()))
    [shop] = watch.history(["shop"], partitions=9).keyspaces
    assert [each.partition for each in shop.partitions] == [1, 0]
    assert shop.age_s == [4.0]


def test_one_unknown_age_makes_the_oldest_unknown() -> None:
    """Unknown counts as not fresh."""
    watch = watch_of({"a:1": [told(0, 1.0), told(1, None), told(2, 1.0), told(3, 1.0)]}, dict.fromkeys(range(4), "a:1"))
    watch.remember(asyncio.run(watch.look()))
    assert watch.history(["shop"]).keyspaces[0].age_s == [None]


def served(path: str) -> httpx2.Response:
    """One request to a front without owners."""
    return ask_app(make_app(make_front([RowSpace("shop", Layout(2), "shop")], Locations())), "GET", path)


def test_the_status_api_is_described_and_answers() -> None:
    """`/v1/status` and its history, in the description too."""
    assert {"/v1/status", "/v1/status/history", "/v1/status/backfills/{keyspace}"} <= {route.path for route in ROUTES}
    assert served("/v1/status/backfills/shop").json()["code"] == "stream_unavailable"  # it reads no Kafka
    found = json.loads(served("/v1/status").content)
    assert [(each["name"], each["ready"], len(each["partitions"])) for each in found["keyspaces"]] == [
        ("shop", False, 2)
    ]
    for query, hours in (("", 1), ("?hours=24&partitions=8", 24)):
        history = json.loads(served(f"/v1/status/history{query}").content)
        assert history["keyspaces"] == [{"name": "shop", "age_s": [], "behind": [], "unknown": [], "partitions": []}]
        assert history["hours"] == hours
    for query in ("hours=7", "partitions=-1", "partitions=65"):
        assert served(f"/v1/status/history?{query}").json()["code"] == "bad_parameter"


class Page(HTMLParser):
    """What a browser would run or load, and what a screen reader goes by."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keeps a tag."""
        self.tags.append((tag, dict(attrs)))


def rendered(*, refresh: bool = True) -> str:
    """The page of a keyspace with everything in it, and with names that would be markup."""
    shard_states: list[Any] = []
    parts = [
        PartitionState("<b>shop", 0, "", "away"),
        PartitionState("<b>shop", 1, "a:1", "ready", 1.5, 0.2, 12, 1_000, 3, shard_states, {"s.<i>t": True}),
        PartitionState("<b>shop", 2, "a:1", "ready", 90.0, 0.2, 0, 5, 0, shard_states, {"s.<i>t": False}),
    ]
    status = FrontStatus([KeyspaceStatus("<b>shop", False, ["<b>shop/0 has no owner"], parts)], NOW)
    history = StatusHistory(
        [NOW - 20, NOW - 10, NOW],
        [0, 5, 7],
        [0, 1, 0],
        [0, 0, 2],
        [
            KeyspaceHistory(
                "<b>shop", [1.0, None, 3.0], [0, 1, 2], [0, 1, 0], [PartitionHistory(2, [1, None, 3], [0, 1, 0])]
            )
        ],
        {"behind": [0, 0, 0], "no_owner": [0, 4, 1], "void": [0, 7, 0]},
        [StatusEvent(NOW, "<b>shop", "moved", [0, 1])],
    )
    backfills = [BackfillState("shop/0", "s.<i>t", 3, True, 9, 3, 2), BackfillState("shop/0", "s.other", 1, False)]
    return page.page_response(status, history, {"<b>shop": backfills}, refresh=refresh).body.decode()


def test_misses_are_stacked_by_why() -> None:
    """The most frequent at the bottom, and the next on top of it; each is filled down to the ground."""
    misses = {"behind": [0, 0], "no_owner": [1, 1], "void": [1, 3]}
    history = StatusHistory([NOW, NOW + 10], [0, 0], [2, 4], [0, 0], [], misses)
    [chart] = page.misses_over_time(history)
    assert chart.text == "at most 4 in ten seconds, stacked by why"
    assert chart.lines == (
        ("miss no_owner", "0.0,80 0.0,40.0 600.0,0.0 600.0,80"),
        ("miss void", "0.0,80 0.0,60.0 600.0,20.0 600.0,80"),
    )
    assert page.misses_over_time(StatusHistory([NOW], [0], [0], [0], [], {"behind": [0]})) == []


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (BackfillState("s", "t", 5, False), "5 rows, waits for its turn"),
        (BackfillState("s", "t", 5_000, True), "5,000 rows"),
        (
            BackfillState("s", "t", 5, True, 9, 0, -1, "the source is behind"),
            "5 of about 9 rows, paused: the source is behind",
        ),
    ],
)
def test_backfills_are_told_in_words(state: BackfillState, words: str) -> None:
    """As far as their sources say."""
    assert page.how_far(state) == words


def test_backfills_are_read_from_the_sources_state() -> None:
    """What has begun and is not complete; the cursors of an epoch that is over are none."""
    point = ResumePoint("shop/0", 7, 1, "MariaDB/0-1-5", 0, "")
    assert told_backfills("shop/0", point) == []
    point.annotations = {
        "backfills": json.dumps([7, {"s.t": [[5], 5], "s.waits": [None, 0]}]),
        "backfill_progress": json.dumps(["s.t", 5, 100, 10, ""]),
    }
    assert told_backfills("shop/0", point) == [
        BackfillState("shop/0", "s.t", 5, True, 100, 10, 9),
        BackfillState("shop/0", "s.waits", 0, False),
    ]
    point.epoch = 8
    assert told_backfills("shop/0", point) == []


def test_the_page_shows_what_is_wrong() -> None:
    """In words, not by colour alone; names from outside are text."""
    text = rendered()
    for words in (
        "Something is not ready",
        "has no owner",
        "nobody",
        "look here",
        "Answers from the cache: 12",
        "no owner answered",
        "<td>0-1</td>",
        "at most 3.0 s, unknown for 10 s",
    ):
        assert words in text, words
    assert "1 of 3 partitions" in text  # the table is whole in one of three
    assert "90.0 s ago" in text
    assert "<b>shop" not in text
    assert "<i>t" not in text
    assert text.index('miss void">void') < text.index('miss no_owner">no_owner')  # the most frequent first
    assert '">behind' not in text
    assert text.count("<polyline") == 8  # two ages with a gap, answers of two kinds, and misses for two reasons
    assert "3 of about 9 rows, 2 s left" in text
    assert "s.other" not in text  # of a table that no owner has heard of


def test_time_without_a_look_is_a_gap_in_the_line() -> None:
    """A line goes by the clock, so a front that slept does not seem to have looked."""
    at = [NOW, NOW + 10, NOW + 20, NOW + 590, NOW + 600]
    history = StatusHistory(at, [], [], [], [KeyspaceHistory("shop", [0.0] * 5, [0] * 5, [0] * 5)])
    [chart] = page.charts_of(history)
    assert [points for _, points in chart.lines] == ["0.0,80.0 10.0,80.0 20.0,80.0", "590.0,80.0 600.0,80.0"]


def test_a_choice_of_time_stays_while_the_page_is_fetched_again() -> None:
    """Its links keep whether the page refreshes, and what is fetched again is of the same hours."""
    shown = served("/?hours=24").text
    assert 'hx-get="/?hours=24"' in shown
    assert '<a href="/?hours=24" aria-current="page">The last day</a>' in shown
    assert 'href="/?hours=6"' in shown
    assert 'href="/?refresh=false&amp;hours=24"' in shown
    assert 'href="/?hours=6&amp;refresh=false"' in served("/?hours=24&refresh=false").text
    assert served("/?hours=2").status_code == 400


def audited(*verdicts: bool | None) -> KeyspaceStatus:
    """A keyspace with a partition for each verdict, verified one second after another; None: not verified."""
    parts = [
        PartitionState(
            "shop", at, "a:1", "ready", verified_at=None if equal is None else NOW + at, verified_equal=equal
        )
        for at, equal in enumerate(verdicts)
    ]
    return KeyspaceStatus("shop", True, [], parts)


@pytest.mark.parametrize(
    ("verdicts", "told", "is_well"),
    [
        ((True, True), "verified at 12 Jan 13:46:40 UTC: equal", True),
        ((None, True), "verified at 12 Jan 13:46:41 UTC: equal in 1 of 2 partitions", True),
        ((True, False), "verified at 12 Jan 13:46:40 UTC: differs", False),
    ],
)
def test_the_page_says_what_was_verified(verdicts: tuple[bool | None, ...], told: str, is_well: bool) -> None:
    """The oldest look counts; a partition that was not looked at is not said to be equal; one that differs is all."""
    keyspace = audited(*verdicts)
    assert page.audit_of(keyspace) == (told, is_well)
    history = StatusHistory([], [], [], [], [], {}, [])
    shown = page.page_response(FrontStatus([keyspace], NOW), history, refresh=False).body.decode()
    assert f'<span class="badge {"well" if is_well else "ill"}">{told}</span>' in shown


def test_without_an_audit_the_page_says_nothing_of_one() -> None:
    """No badge: not verified is not the same as equal."""
    assert page.audit_of(audited(None, None)) is None
    assert "verified" not in rendered()


def test_an_owners_verdict_is_in_the_status() -> None:
    """With the audit's time in seconds."""
    part = told(0, 1.0)
    part.verdict = Verdict(0, 100, True, int(NOW * 1000))
    watch = watch_of({"a:1": [part]}, dict.fromkeys(range(4), "a:1"))
    seen = {each.partition: each for each in asyncio.run(watch.look()).partitions}
    assert (seen[0].verified_at, seen[0].verified_equal) == (NOW, True)
    assert seen[1].verified_at is None


def test_the_page_loads_nothing_from_elsewhere_and_runs_nothing_inline() -> None:
    """Its policy allows its own files only, and it has no style, script or handler in its text."""
    response = served("/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for text in (response.text, rendered()):
        parsed = Page(text)
        loaded = [value for _, each in parsed.tags for name, value in each.items() if name in ("src", "href", "hx-get")]
        assert all(value is not None and value.startswith(("/", "#")) for value in loaded)
        assert not any(name == "style" or name.startswith("on") for _, each in parsed.tags for name in each)
        assert not re.search(r"<script>|<style", text)
        files = [value for value in loaded if value and value.startswith("/files/")]
        assert {served(value).status_code for value in files} == {200}
    assert "unknown_path" in served("/files/page.html").text


def test_the_page_can_be_stopped_and_read_aloud() -> None:
    """It does not move for whoever needs time; it has one h1, captions, headers with a scope, and words for charts."""
    assert "hx-trigger" in rendered()
    assert "hx-" not in rendered(refresh=False).replace("htmx-config", "")
    tags = Page(rendered()).tags
    names = [name for name, _ in tags]
    assert (names.count("h1"), names.count("main")) == (1, 1)
    assert names.count("table") == names.count("caption") == 5
    assert all(each.get("scope") for name, each in tags if name == "th")
    assert all(each.get("aria-label") for name, each in tags if name == "svg")
    assert ("html", {"lang": "en"}) in tags
    ids = [each["id"] for _, each in tags if "id" in each]
    assert len(ids) == len(set(ids))
    assert {each["aria-labelledby"] for _, each in tags if "aria-labelledby" in each} <= set(ids)


def test_text_has_enough_contrast_in_the_light_and_in_the_dark() -> None:
    """Each colour of text against its background: 4.5 to 1 or more (WCAG AA)."""
    css = (page._DIRECTORY / "page.css").read_text()
    for block in re.findall(r":root \{([^}]*--text[^}]*)\}", css):
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
        back = _luminance(colours["back"])
        for name in ("text", "well", "ill", "source", "link"):
            bright, dark = sorted((_luminance(colours[name]), back), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= 4.5, (name, colours[name])


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_catalogs_source_without_a_clock_is_well_while_it_is_heard_of() -> None:
    """Its markers tell no time: the page says so, and marks it once it is silent. A clock that is missed is marked."""
    heard = PartitionState(
        "hive", 0, "a:1", "ready", None, 0.5, 0, 1, 0, [ShardState("hive/0", 1, "HiveEvent/5", None)]
    )
    assert page.is_well(heard)
    assert page.proved_until(heard) == "no clock, heard of 0.5 s ago"
    heard.silent_s = 60.0
    assert not page.is_well(heard)
    heard.silent_s, heard.shards = 0.5, [*heard.shards, ShardState("hive/1", 1, "HiveEvent/5", 0.1)]
    assert not page.is_well(heard)
    assert page.proved_until(heard) == "unknown"


def test_a_browser_gives_the_token_as_its_password() -> None:
    """It is asked for it, and may read by it; another password is refused, and nothing is changed by it."""
    front = make_front([RowSpace("shop", Layout(2), "shop")], Locations(), access=Access.of_secret("very secret"))

    async def story() -> None:
        async with client_of(make_app(front)) as client:
            asked = await client.get("/")
            assert (asked.status_code, "Basic realm=" in asked.headers["www-authenticate"]) == (401, True)
            for path in ("/", "/files/page.css", "/v1/status"):
                assert (await client.get(path, auth=("anybody", "very secret"))).status_code == 200
                assert (await client.get(path, auth=("very secret", "wrong"))).status_code == 401
            posted = await client.post("/v1/rows/shop:batch", json={"keys": []}, auth=("anybody", "very secret"))
            assert posted.status_code == 401
            for header in ("Basic", "Basic !", "Basic OnY=", "Basic dg=="):
                assert (await client.get("/", headers={"authorization": header})).status_code == 401

    asyncio.run(story())


def test_whoever_sees_one_keyspace_sees_no_more_on_the_page() -> None:
    """Neither another one's name, nor answers, which are counted for all together."""
    spaces = [RowSpace("shop", Layout(2), "shop"), RowSpace("payroll", Layout(2), "payroll")]
    secrets = {"some": frozenset({"shop"}), "all": None}
    access = Access(
        Credential(Grant(name, frozenset({READ}), seen), digest_of(name.encode())) for name, seen in secrets.items()
    )
    front = make_front(spaces, Locations(), access=access)

    async def story() -> None:
        front.watch.remember(await front.watch.look())
        async with client_of(make_app(front)) as client:
            for name, count in (("some", 0), ("all", 1)):
                shown = [
                    await client.get(path, auth=("me", name)) for path in ("/", "/v1/status", "/v1/status/history")
                ]
                assert {each.status_code for each in shown} == {200}
                assert ["payroll" in each.text for each in shown] == [name == "all"] * 3
                assert ("Answers from the cache" in shown[0].text) is (name == "all")
                assert len(shown[2].json()["cache"]) == count

    asyncio.run(story())


def test_the_vendored_script_is_the_packages() -> None:
    """htmx as npm has it, with its licence beside it."""
    files = Path(page.__file__).parent / "files"
    assert hashlib.sha256((files / "htmx.min.js").read_bytes()).hexdigest() == HTMX
    assert "BSD" in (files / "htmx.LICENSE").read_text()


@pytest.mark.parametrize(
    ("age", "words"), [(None, "unknown"), (0.04, "0.0 s ago"), (300, "5 min ago"), (9e3, "2 h ago")]
)
def test_ages_are_told_in_words(age: float | None, words: str) -> None:
    """Short, and never a date."""
    assert page.shown_age(age) == words
