"""What is to be fetched of partitions, while others of the table are dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, cast

import pytest

from stream.sources.hive.live.fetching import Fetcher
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.live.partitions import KINDS, WHOLE, Partitions, Values
from stream.sources.hive.messages import TableObject
from stream.sources.hive.recent_drops import RecentDrops
from stream.sources.hive.structs import Struct
from stream.wire.events import DROPS_KEPT, Change, ObjectImage, ObjectSet

TABLE = 7
NAMES = ["p=a", "p=b"]


class Warehouse:
    """A metastore with one table of two partitions. Its calls are answered at once, in the caller's thread."""

    def __init__(self) -> None:
        self.end = 10
        self.dropped_meanwhile = 0
        """Other partitions that are dropped while the next chunk is read."""
        self.written_meanwhile = 0
        """Other partitions that are written while each chunk is read."""
        self.published: list[Change] = []
        self.drops = RecentDrops()
        self.fetches = 0
        self.partitions = Partitions(
            cast("Fetcher", self),
            self.publish,
            self.position,
            self.drain,
            lambda _: "d.t",
            lambda _: 0,
            self.drops,
        )

    def run(self, work: Callable[[Metastore], Any]) -> Future[Any]:
        """As `Fetcher.run`."""
        future: Future[Any] = Future()
        future.set_result(work(cast("Metastore", self)))
        return future

    def publish(self, changes: list[Change]) -> None:
        """Takes what is published."""
        self.drops.note(self.end, changes)
        self.published += changes

    def position(self) -> int:
        """The log's end."""
        return self.end

    last_event = position

    def drain(self, _: int) -> None:
        """The log is read: it tells of the drops."""
        dropped, self.dropped_meanwhile = self.dropped_meanwhile, 0
        self.publish([ObjectImage("partition", TABLE, (f"gone{each}",), "dropped") for each in range(dropped)])
        for each in range(self.written_meanwhile):
            self.partitions.note(written(f"new{each}"))

    def table(self, _: str) -> TableObject:
        """The table."""
        return TableObject("d.t", TABLE, True, True, b"{}", None, ("p",))

    def partition_names(self, _: str) -> list[str]:
        """All of them."""
        return list(NAMES)

    def partitions_by_names(self, _: str, names: Sequence[str]) -> list[tuple[Values, Struct]]:
        """Those that exist. Meanwhile the log goes on."""
        self.fetches += 1
        self.end += bool(self.dropped_meanwhile or self.written_meanwhile)
        return [((name.partition("=")[2],), {}) for name in names]

    def partition_statistics(self, *_: object) -> list[tuple[Values, Struct]]:
        """None has any."""
        return []

    def images(self) -> list[tuple[Values, str]]:
        """The partitions that were published, and as of which event."""
        shown = [each for each in self.published if isinstance(each, ObjectImage) and each.change == "image"]
        return [(each.name, each.lo) for each in shown]


def written(name: str) -> ObjectImage:
    """An event wrote a partition."""
    return ObjectImage("partition", TABLE, (name,), "written")


@pytest.mark.parametrize("dropped", [DROPS_KEPT, DROPS_KEPT + 1])
def test_a_written_partition_is_read_again_after_too_many_drops(dropped: int) -> None:
    """The fold could not tell its image from one of a dropped partition, and it would wait for another for good."""
    warehouse = Warehouse()
    warehouse.partitions.note(written("a"))
    warehouse.dropped_meanwhile = dropped
    while warehouse.partitions.step():
        pass
    again = dropped > DROPS_KEPT
    assert warehouse.fetches == 1 + again
    assert warehouse.images() == [(("a",), "HiveEvent/11" if again else "HiveEvent/10")]


def test_only_the_chunk_of_a_pass_is_read_again() -> None:
    """A pass over 100,000 partitions must not begin anew with each few drops, or it would never end."""
    warehouse = Warehouse()
    warehouse.partitions.want(TABLE)
    warehouse.dropped_meanwhile = DROPS_KEPT + 1
    while warehouse.partitions.go_on():
        pass
    sets = [each.change for each in warehouse.published if isinstance(each, ObjectSet) and each.kind == "partition"]
    assert sets == ["begun", "complete"]
    assert [name for name, _ in warehouse.images()] == [("a",), ("b",)]


def test_a_pass_ends_while_partitions_without_statistics_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """That they have none is said when the pass is over: it is no drop that its chunks must be read again for."""
    monkeypatch.setattr("stream.sources.hive.live.partitions.CHUNK", 1)
    warehouse = Warehouse()
    warehouse.partitions.want(TABLE)
    warehouse.partitions.go_on()
    warehouse.written_meanwhile = DROPS_KEPT + 1
    for _ in range(20):
        warehouse.partitions.step()
        warehouse.partitions.go_on()
    sets = [(each.kind, each.change) for each in warehouse.published if isinstance(each, ObjectSet)]
    assert sets[:4] == [(kind, change) for change in WHOLE for kind in KINDS]
    complete = warehouse.published.index(ObjectSet(KINDS[1], TABLE, "complete", lo="HiveEvent/10"))
    without = [isinstance(each, ObjectImage) and each.change == "dropped" for each in warehouse.published]
    assert not any(without[:complete])
    assert any(without[complete:])


def test_those_that_are_there_are_published_before_those_that_are_not() -> None:
    """Many partitions without statistics would else push out what their own images are judged by."""
    warehouse = Warehouse()
    for name in ("a", "b"):
        warehouse.partitions.note(written(name))
    warehouse.partitions.step()
    changes = [each.change for each in warehouse.published if isinstance(each, ObjectImage)]
    assert changes == ["image", "image", "dropped", "dropped"]
