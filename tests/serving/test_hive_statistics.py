"""By which write a front judges what it reads of a metastore with several calls, while it is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from serving.client import Unavailable
from serving.sources import hive_objects
from serving.sources.hive_objects import read_objects
from serving.sources.source import SourceObjects, WantedObjects
from stream.sources.hive.live.metastore import ServerList
from stream.sources.hive.messages import TableObject
from stream.sources.hive.rpc.thrift import long, text
from stream.sources.hive.structs import Struct
from tests.consumers.owning import KEYSPACE
from tests.serving.test_object_reads import KEYS, HiveSource, Installation
from tests.serving.test_source_answers import Catalog, as_metastore
from tokens import Position


class Analyzed(Catalog):
    """Statistics of ``d.t`` and its partition ``p=1``, written with one id more right after each of the first reads.

    ``writes``: those that are still to come. What is read with it tells the write id of its write.
    """

    def __init__(self, writes: int) -> None:
        super().__init__(("INSERT", "d", "t"))
        self.writes, self.write_id = writes, 5
        self.caches, self.opened, self.reconnects = False, 1, 0

    def _analyzed(self) -> int:
        """The write id by now; the next one is written before anything else is read."""
        seen = self.write_id
        if self.writes:
            self.writes, self.write_id = self.writes - 1, seen + 1
            self.told += (("UPDATE_PART_COL_STAT_EVENT", "d", "t"),)
        return seen

    def write_ids(self, names: Sequence[str], _: str = "") -> dict[str, ServerList]:
        """The writers are not committed."""
        return {name: ServerList(5, (), ()) for name in names}

    def table(self, name: str) -> TableObject:
        """With the last write's id."""
        shown = b'{"writeId":%d,"sd":{"cols":[{"name":"a"}]},"partitionKeys":[{"name":"p"}]}'
        return TableObject(name, 7, True, True, shown % self._analyzed())

    def partition_names(self, _: str) -> list[str]:
        """There is one."""
        return ["p=1"]

    def partitions_by_names(self, _: str, names: Sequence[str]) -> list[tuple[tuple[str, ...], Struct]]:
        """It, with the last write's id."""
        return [(("1",), {10: long(self._analyzed())})] if "p=1" in names else []

    def statistics(self, *_: object) -> Struct:
        """Those of the last write."""
        return {4: text(str(self.write_id))}

    def partition_statistics(self, *_: object) -> list[tuple[tuple[str, ...], Struct]]:
        """Those of the last write."""
        return [(("1",), self.statistics())]

    def caches_aggregates(self) -> bool:
        """As the metastore says of itself."""
        return self.caches

    def aggregate_statistics(self, *_: object) -> Struct:
        """Those of the last write."""
        self.opened += self.reconnects
        return {2: long(self.write_id)}


@pytest.mark.parametrize("writes", [0, 1, 2, 99])
@pytest.mark.parametrize("kind", ["statistics", "partition_statistics", "aggregate_statistics"])
def test_statistics_are_judged_by_the_write_that_they_are_of(kind: str, writes: int) -> None:
    """They don't tell it. By the image of before they would hold for readers who don't see the write."""
    name = ("1",) if kind == "partition_statistics" else ()
    wanted = WantedObjects(kind, "d.t", names=(name,))
    found = read_objects(as_metastore(Analyzed(writes)), wanted, None)
    [shown] = [str(each and each.decode()) for each in found.images]
    if writes == 99:
        assert found.statistics_of == (), "of what is written all the time, nobody knows"
    else:
        [[image]] = found.statistics_of
        assert image is not None
        [write_id] = re.findall(rb'"writeId":(\d+)', image)
        assert re.findall(r"\d+", shown) == [write_id.decode()]


@pytest.mark.parametrize("kind", ["statistics", "partition_statistics", "aggregate_statistics"])
def test_statistics_that_a_metastore_may_have_kept_prove_nothing(kind: str) -> None:
    """It keeps those of all partitions together, whatever is written meanwhile: they are as of nobody knows when."""
    name = ("1",) if kind == "partition_statistics" else ()
    wanted, catalog = WantedObjects(kind, "d.t", names=(name,)), Analyzed(0)
    catalog.caches = True
    found = read_objects(as_metastore(catalog), wanted, None)
    assert len(found.images) == 1
    assert (found.is_proved, bool(found.statistics_of)) == ((kind != "aggregate_statistics"),) * 2


def test_what_another_metastore_tells_together_proves_nothing() -> None:
    """That one may keep them, though the one before does not."""
    catalog = Analyzed(0)
    catalog.reconnects = 1
    found = read_objects(as_metastore(catalog), WantedObjects("aggregate_statistics", "d.t", names=((),)), None)
    assert (found.is_proved, found.statistics_of) == (False, ())


@pytest.mark.parametrize("listed", ["sales.t:2:9223372036854775807::", ""])
@pytest.mark.parametrize("staleness_ms", [None, 60_000])
def test_what_the_source_may_have_kept_is_eventual(tmp_path: Path, staleness_ms: int | None, listed: str) -> None:
    """Whatever is demanded of it: a list, a token or a time. What it has to be at or past still counts."""
    running = Installation(tmp_path, source := HiveSource())
    running.table()
    kind, at = "transactional" if listed else "external", Position.parse("HiveEvent/9")
    source.answer = SourceObjects([()], [b"{}"], at, None, 7, kind, listed, KEYS, as_of_ms=2**62)

    def read() -> Any:
        options: dict[str, Any] = {"aggregate": True, "max_staleness_ms": staleness_ms, "max_wait_ms": 0}
        return running.session.get_statistics("sales", "t", listed or None, 7, catalog=KEYSPACE, **options)

    assert read().freshness == "fresh"
    source.answer = source.answer._replace(is_proved=False)
    found = read()
    assert (found.served_from, found.freshness, found.stats_compliant) == ("source", "eventual", None)
    assert "may be from before a write" in found.why
    source.answer = source.answer._replace(position=Position.parse("HiveEvent/0"), write_ids="", as_of_ms=0)
    with pytest.raises(Unavailable):
        read()


class Renamed(Analyzed):
    """One of two partitions of ``d.t`` gets another name right after each of the first lists of names."""

    def partition_names(self, _: str) -> list[str]:
        """As they were before that."""
        seen = [f"p={self.write_id}", "p=x"]
        self._analyzed()
        return seen

    def partitions_by_names(self, _: str, names: Sequence[str]) -> list[tuple[tuple[str, ...], Struct]]:
        """As they are by now."""
        return [((value,), {}) for value in (str(self.write_id), "x") if f"p={value}" in names]

    def table(self, name: str) -> TableObject:
        """Which nothing changes."""
        return TableObject(name, 7, True, True, b'{"writeId":1,"partitionKeys":[{"name":"p"}]}')


def test_a_list_that_took_long_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one would be read three times within the time that its reader waits."""
    monkeypatch.setattr(hive_objects, "AGAIN_WITHIN_S", 0.0)
    catalog = Renamed(1)
    assert not read_objects(as_metastore(catalog), WantedObjects("partition", "d.t"), None).is_proved
    assert catalog.write_id == 6, "its names were listed once"


@pytest.mark.parametrize(("writes", "is_proved"), [(0, True), (1, True), (2, True), (99, False)])
def test_a_list_of_partitions_is_of_one_moment(writes: int, is_proved: bool) -> None:
    """By names of before and images of after, one that got another name was in neither."""
    catalog = Renamed(writes)
    found = read_objects(as_metastore(catalog), WantedObjects("partition", "d.t"), None)
    assert found.is_proved is is_proved
    assert (found.names == [(str(catalog.write_id),), ("x",)]) is is_proved
