"""When a Hive source begins an epoch, and what it does once publisher or metastore are lost. Without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from stream.publish.publisher import PublisherLost
from stream.sources.hive.live import fetching, source
from stream.sources.hive.live.fetching import Fetcher
from stream.sources.hive.live.following import FollowOptions
from stream.sources.hive.live.metastore import MetastoreSettings, Transactions
from stream.sources.hive.live.notification_log import HiveHistoryLost
from stream.sources.hive.live.source import CatalogChanged
from stream.sources.hive.progress import DIRTY_MAX, Progress, checksum_of
from stream.sources.hive.rpc.connection import MetastoreRefused, MetastoreUnreachable
from stream.wire.events import ResumePoint, SourceTransaction

OPTIONS = FollowOptions(MetastoreSettings((("127.0.0.1", 1),)), "hive/0", poll_s=0.0)


def event(number: int) -> dict[str, Any]:
    """An event of the log."""
    return {"eventId": number, "eventTime": 1_000 + number, "eventType": "OPEN_TXN", "dbName": None, "message": "{}"}


class Steps:
    """A source that follows by the ``steps`` that it is given, and then stops. ``told``: what was done, in order.

    An error is raised by its step. Each look at the server's transactions finds one more.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        steps: Sequence[Exception | None],
        resume: ResumePoint | None = None,
        *,
        new_epoch: bool = False,
    ) -> None:
        self.told: list[object] = []
        self.begun: list[int | None] = []
        """For each time that the log is followed, as of which look at the transactions; None: none is new."""
        self.looks = 0
        self.end = 5
        self.shows_catalog: Callable[[], dict[int, object] | None] = dict
        self.flush_fails: list[PublisherLost] = []
        self._resume, self._steps = resume, [*steps]
        monkeypatch.setattr(source, "Metastore", lambda _: self)
        monkeypatch.setattr(source, "Following", self._following)
        for wait in ("BACKOFF_FIRST_S", "BACKOFF_MAX_S"):
            monkeypatch.setattr(source, wait, 0.0)
        self.source = source.HiveSource(OPTIONS, lambda: self, new_epoch=new_epoch)

    def run(self) -> list[object]:
        """Until it stops; what was done."""
        self.source.run()
        return self.told

    def _following(self, *words: Any) -> Steps:
        begun = words[-1]
        self.begun.append(None if begun is None else begun.hwm)
        return self

    def step(self) -> bool:
        """Of `Following`."""
        if not self._steps:
            self.source.stop()
        elif (failure := self._steps.pop(0)) is not None:
            raise failure
        return True

    # the metastore

    catalog = "warehouse"

    def catalog_object(self) -> dict[int, object] | None:
        """The catalog, or None."""
        return self.shows_catalog()

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def last_event(self) -> int:
        """The log's end."""
        return self.end

    def events(self, after: int, count: int) -> list[dict[str, Any]]:
        """Those after one."""
        return [event(number) for number in range(after + 1, self.end + 1)][:count]

    def transactions(self) -> Transactions:
        """As of this look."""
        self.looks += 1
        return Transactions(self.looks, frozenset(), frozenset())

    # the publisher

    def open(self, start_if_new: Any) -> ResumePoint:
        """Where it goes on; a shard that is new begins."""
        self.told.append("opened")
        if self._resume is not None:
            return self._resume
        position, timestamp = start_if_new()
        return ResumePoint("hive/0", 1, 0, position, timestamp, position)

    def start_new_epoch(self, position: str, timestamp: int, reason: str) -> ResumePoint:
        """Another one begins."""
        self.told.append((position, timestamp, reason))
        return ResumePoint("hive/0", 2, 0, position, timestamp, position)

    def publish(self, _: SourceTransaction) -> None:
        """Nobody does."""

    def stamp(self, as_of_ms: int) -> None:
        """Nobody reads the time."""

    def flush(self) -> None:
        """Raises if the publisher was lost."""
        if self.flush_fails:
            raise self.flush_fails.pop()

    def close(self) -> None:
        """Of publisher and following alike."""

    def abandon(self) -> None:
        """Nothing more is published by it."""
        self.told.append("abandoned")


LOST = HiveHistoryLost("the log was cleaned")
EPOCH = ("HiveEvent/5", 1_005, "history_lost")


def resumed(at: int, **more: Any) -> ResumePoint:
    """A shard that has published up to an event."""
    return ResumePoint("hive/0", 1, 0, f"HiveEvent/{at}", 1_000 + at, f"HiveEvent/{at}", **more)


@pytest.mark.parametrize("resume", [None, resumed(5)])
def test_each_history_that_is_lost_begins_an_epoch_with_the_transactions_of_its_beginning(
    monkeypatch: pytest.MonkeyPatch, resume: ResumePoint | None
) -> None:
    """Else the source would go on at a position that the log does not have, over and over."""
    steps = Steps(monkeypatch, [LOST, None, LOST], resume)
    assert steps.run() == ["opened", EPOCH, EPOCH]
    assert steps.begun == ([1, 2, 3] if resume is None else [None, 1, 2])


@pytest.mark.parametrize(
    ("resume", "reason"),
    [
        (resumed(5), ""),
        (resumed(3, checksum=checksum_of(event(3))), ""),
        (resumed(0), ""),
        (resumed(6), "history_lost"),
        (resumed(3, checksum=checksum_of(event(4))), "history_lost"),
        (resumed(3, checksum=checksum_of(event(3)), partial_gtid="HiveEvent/4"), "partly_published"),
    ],
)
def test_a_log_that_does_not_go_on_from_what_was_published_begins_an_epoch(
    monkeypatch: pytest.MonkeyPatch, resume: ResumePoint, reason: str
) -> None:
    """It ends earlier, has another event there, or its event was published in part with names of before."""
    steps = Steps(monkeypatch, [], resume)
    assert steps.run() == ["opened", *([("HiveEvent/5", 1_005, reason)] if reason else [])]
    assert steps.begun == [1 if reason else None]


def test_a_catalog_that_the_metastore_does_not_have_is_not_published_as_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A keyspace may have any name, and its catalog is called so unless it is set. One that was published may go."""
    steps = Steps(monkeypatch, [])
    steps.shows_catalog = lambda: None
    with pytest.raises(source.UnknownCatalog, match="no catalog warehouse"):
        steps.run()
    assert steps.told == ["opened", "abandoned"]
    later = Steps(monkeypatch, [], resumed(5))
    later.shows_catalog = steps.shows_catalog
    assert later.run() == ["opened"]


def test_a_metastore_that_does_not_show_its_catalog_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may refuse to, and what it has in it is read all the same."""

    def refuse() -> None:
        raise MetastoreRefused("get_catalog", 2, "not to you")

    steps = Steps(monkeypatch, [])
    steps.shows_catalog = refuse
    assert steps.run() == ["opened"]


def test_a_publisher_that_was_lost_is_noticed_while_the_metastore_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another source has taken over: this one must not go on as soon as the metastore is back."""
    away = MetastoreUnreachable("no metastore answers")
    steps = Steps(monkeypatch, [away, away], resumed(5))
    steps.flush_fails = [PublisherLost("another one publishes")]
    assert steps.run() == ["opened", "abandoned", "opened"]


def test_a_fetcher_that_is_closed_closes_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each epoch has one of its own: a metastore has only so many threads for those of before."""
    closed: list[str] = []

    class Connection:
        def close(self) -> None:
            closed.append("closed")

    monkeypatch.setattr(fetching, "Metastore", lambda _: Connection())
    fetcher = Fetcher(OPTIONS.settings, 1, 60.0)
    first, again = (fetcher.run(lambda metastore: metastore).result() for _ in range(2))
    assert first is again
    fetcher.close()
    assert closed == ["closed"]


@pytest.mark.parametrize(("published", "is_refused"), [("hive", False), ("", False), ("spark", True)])
def test_another_catalog_than_the_one_that_is_published_needs_a_new_epoch(
    monkeypatch: pytest.MonkeyPatch, published: str, is_refused: bool
) -> None:
    """All catalogs share the log, so it went on: nothing told of the published tables any more, and they were fresh."""
    progress = Progress()
    progress.catalog = published
    for cursor in (progress.cursor(), progress.cursor(map(str, range(DIRTY_MAX + 1)))):
        steps = Steps(monkeypatch, [None], resumed(5, cursor=cursor))
        with pytest.raises(CatalogChanged, match="spark") if is_refused else nullcontext():
            steps.run()
        anew = Steps(monkeypatch, [None], resumed(5, cursor=cursor), new_epoch=True)
        assert any("asked_for" in str(each) for each in anew.run())
