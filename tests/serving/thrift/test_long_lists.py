"""Lists of objects as Thrift that are too long to be held in memory, or to be written while all others wait."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from consumers.owner.protocol import OwnerObjects
from serving.metrics import FrontMetrics
from serving.reads import objects
from serving.reads.demands import ReadDemand, RequestedTable
from serving.reads.objects import ObjectReads, RequestedObjects
from serving.reads.owners import Owners
from serving.reads.spaces import TableSpace
from stream.wire.keys import Layout
from tests.serving.test_table_reads import SHARD


class Pages:
    """Owners that have ``left`` more pages of two objects, of 100 bytes each."""

    def __init__(self, left: int) -> None:
        self.left = left

    async def ask_any(self, *_: object, **__: object) -> OwnerObjects:
        self.left -= 1
        decided = ("fresh", "", True, False, SHARD, 1, "HiveEvent/5", "HiveEvent/5", "HiveEvent/5")
        after = "b" if self.left else ""
        return OwnerObjects(0, 7, 0, *decided, ["a", "b"], [], after=after, structs=[b"x" * 100] * 2, count=2)


@pytest.mark.parametrize("names_only", [False, True])
@pytest.mark.parametrize(("pages", "is_answered"), [(3, True), (4, False), (100, False)])
def test_a_list_that_is_too_long_is_the_sources(
    monkeypatch: pytest.MonkeyPatch, names_only: bool, pages: int, is_answered: bool
) -> None:
    """Whether it has too many bytes or too many names. The rest of it is not asked for."""
    monkeypatch.setattr(objects, "STRUCT_BYTES_MAX", 650)
    monkeypatch.setattr(objects, "STRUCT_NAMES_MAX", 7)
    owners = Pages(pages)
    reads = ObjectReads(cast("Owners", owners), FrontMetrics())
    wanted = RequestedObjects("partition", RequestedTable("hive", "db", "t"), names_only=names_only)
    found = asyncio.run(reads.read_structs(TableSpace("hive", Layout(1)), wanted, ReadDemand()))
    assert (found is not None) is is_answered
    assert owners.left == max(0, pages - 4)
