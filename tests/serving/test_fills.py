"""Fills are sent in the background, within bounds, and whatever becomes of them harms nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from consumers.owner.protocol import Fill, Filled, FillTable, OwnerError
from serving.metrics import FrontMetrics
from serving.reads import fills as fills_of
from serving.reads.fills import Fills
from tests.serving.fakes import FakeOwner, Network


class GatedOwner(FakeOwner):
    """An owner that answers fills when the test says so."""

    def __init__(self, *, failure: OwnerError | None = None) -> None:
        super().__init__(failure=failure)
        self.gate = asyncio.Event()
        self.filled = Filled(0, True, "")

    async def fill_rows(self, fills: Sequence[Fill]) -> list[Filled]:
        await self.gate.wait()
        await super().fill_rows(fills)
        return [self.filled for _ in fills]


def row(image: bytes | None = b"{}") -> Fill:
    """A row that is offered."""
    return Fill(0, "shop", 0, b"shop.items\0[1]", image, "MariaDB/0-1-5", "MariaDB/0-1-5", 1, b"stamp")


def counted(metrics: FrontMetrics) -> dict[str, float]:
    """Outcome → how many fills, without zeros."""
    found = {}
    for line in metrics.exposition().decode().splitlines():
        if line.startswith("freshet_serve_fills_total{") and not line.endswith(" 0.0"):
            found[line.split('"')[1]] = float(line.rsplit(" ", 1)[1])
    return found


async def settled() -> None:
    """Lets every task run as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_fills_beyond_the_bounds_are_dropped_until_others_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that hangs must not let a front's memory grow; both the number and the bytes count, inclusively."""
    monkeypatch.setattr(fills_of, "UNDER_WAY_MAX", 3)
    monkeypatch.setattr(fills_of, "UNDER_WAY_BYTES_MAX", 10)

    async def run() -> None:
        owner, metrics = GatedOwner(), FrontMetrics()
        fills = Fills(Network(monkeypatch, {"a:1": owner}).owners(), metrics)
        fills.offer_rows("shop", 0, [row(b"12345"), row(None), row(b"12345")])
        fills.offer_rows("shop", 0, [row(None)])
        await settled()
        assert counted(metrics) == {"dropped": 1}
        owner.gate.set()
        await settled()
        assert counted(metrics) == {"dropped": 1, "accepted": 3}
        fills.offer_rows("shop", 0, [row(b"1" * 11)])
        fills.offer_rows("shop", 0, [row(b"1" * 10)])
        owner.gate.clear()
        await settled()
        fills.offer_rows("shop", 0, [row(b"1")])
        assert counted(metrics)["dropped"] == 3
        owner.gate.set()
        await settled()
        fills.offer_rows("shop", 0, [row(b"1" * 10), row(None), row(None)])
        await settled()
        assert len(owner.fills) == 7
        assert counted(metrics)["dropped"] == 3, "what has ended counts no more"
        await fills.close()

    asyncio.run(run())


def test_refused_and_failed_fills_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next read of the key reads the source again, and operators see why."""

    async def run() -> None:
        metrics = FrontMetrics()
        owner, away = GatedOwner(), GatedOwner(failure=OwnerError("away", code="owner_unreachable"))
        owner.filled = Filled(0, False, "the key changed")
        network = Network(monkeypatch, {"a:1": owner, "b:1": away})
        network.announced[1] = ["b:1"]
        fills = Fills(network.owners(), metrics)
        for each in (owner, away):
            each.gate.set()
        fills.offer_rows("shop", 0, [row(), row()])
        fills.offer_rows("shop", 1, [row(), row(), row()])
        await settled()
        assert counted(metrics) == {"refused": 2, "failed": 3}
        table = FillTable(0, "shop", 0, 7, "d.t", "external", b"{}", "", "HiveEvent/1", "HiveEvent/1", b"stamp")
        fills.offer_table("shop", 0, table)
        await settled()
        assert counted(metrics) == {"refused": 2, "failed": 3, "accepted": 1}
        assert owner.fills[-1] is table
        await fills.close()

    asyncio.run(run())


def test_closing_ends_the_fills_that_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front that stops waits for no owner, and leaves no task behind."""

    async def run() -> None:
        owner = GatedOwner()
        fills = Fills(Network(monkeypatch, {"a:1": owner}).owners(), FrontMetrics())
        fills.offer_rows("shop", 0, [row()])
        await settled()
        before = len(asyncio.all_tasks())
        await asyncio.wait_for(fills.close(), 5)
        assert len(asyncio.all_tasks()) == before - 1
        assert owner.fills == []

    asyncio.run(run())


def test_a_table_counts_by_its_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of thousands of columns is as large as many rows."""
    monkeypatch.setattr(fills_of, "UNDER_WAY_BYTES_MAX", 10)

    async def run() -> None:
        metrics = FrontMetrics()
        fills = Fills(Network(monkeypatch, {"a:1": FakeOwner()}).owners(), metrics)
        for size in (10, 1):
            image = b"x" * size
            fills.offer_table("hive", 0, FillTable(0, "hive", 0, 7, "db.t", "external", image, "", "p", "p", b"s"))
        assert counted(metrics) == {"dropped": 1}
        await fills.close()

    asyncio.run(run())
