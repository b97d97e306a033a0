"""By which write a front judges statistics that it reads of a metastore, while they are written."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from serving.sources.hive_objects import read_objects
from serving.sources.source import WantedObjects
from stream.sources.hive.live.metastore import ServerList
from stream.sources.hive.messages import TableObject
from stream.sources.hive.rpc.thrift import long, text
from stream.sources.hive.structs import Struct
from tests.serving.test_source_answers import Catalog, as_metastore


class Analyzed(Catalog):
    """Statistics of ``d.t`` and its partition ``p=1``, written with one id more right after each of the first reads.

    ``writes``: those that are still to come. What is read with it tells the write id of its write.
    """

    def __init__(self, writes: int) -> None:
        super().__init__(("INSERT", "d", "t"))
        self.writes, self.write_id = writes, 5

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

    def aggregate_statistics(self, *_: object) -> Struct:
        """Those of the last write."""
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
