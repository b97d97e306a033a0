"""Leases: one front reads the source for a key, the others wait for its fill, and not for a front that is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.owner import leasing
from consumers.owner.connection import refuse
from consumers.owner.protocol import Answer, Fill, Filled, Get, OwnerRow, Rows, Standing
from stream.access.grants import FILL, READ, Grant
from tests.consumers.histories import gtid, key, marker, start
from tests.consumers.owning import KEYSPACE, Owner, schema
from tokens import TokenError

ONE, OTHER = "front one", "front two"


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    """A table without rows, read through: each key is missed."""
    owner = Owner(tmp_path)
    owner.fold(start(), marker(1), schema(2), marker(3))
    yield owner
    owner.partition.store.close(commit=False)


def ask(owner: Owner, holder: str, *numbers: int) -> asyncio.Task[Answer] | list[OwnerRow]:
    """The rows if they come at once, else the request that waits."""
    found = owner.server.answer(Get(1, KEYSPACE, 0, [key(number) for number in numbers], holder=holder))
    if asyncio.iscoroutine(found):
        return asyncio.create_task(found)
    assert isinstance(found, Rows)
    return found.rows


def fill(owner: Owner, stamp: bytes, number: int = 7, lo: str = gtid(3)) -> Filled:
    """What a front offers of a key. ``lo`` "": nothing."""
    filled = owner.server.answer(Fill(1, KEYSPACE, 0, key(number), b'{"id":7}', lo, lo, 0, stamp))
    assert isinstance(filled, Filled)
    return filled


async def rows_of(asked: asyncio.Task[Answer] | list[OwnerRow]) -> list[OwnerRow]:
    """The rows of a request that waits."""
    assert isinstance(asked, asyncio.Task), "it does not wait"
    found = await asyncio.wait_for(asked, 10)
    assert isinstance(found, Rows)
    return found.rows


def at_once(asked: asyncio.Task[Answer] | list[OwnerRow]) -> list[bool]:
    """Which rows of a request that does not wait are its own to fill."""
    assert isinstance(asked, list), "it waits"
    return [row.leased for row in asked]


def test_others_wait_for_one_filler_and_get_its_row(owner: Owner) -> None:
    """Ten fronts miss a key at once: one reads the source, and all others are answered by its fill."""

    async def main() -> None:
        first = ask(owner, ONE, 7)
        assert at_once(first) == [True]
        assert at_once(ask(owner, ONE, 7)) == [True], "a front shares its own reads of the source"
        waiting = [ask(owner, f"front {number}", 7) for number in range(10, 19)]
        await asyncio.sleep(0)
        assert isinstance(first, list)
        assert fill(owner, first[0].stamp).accepted
        for each in waiting:
            [row] = await rows_of(each)
            assert (row.served, row.image) == (True, b'{"id":7}')
        assert len(owner.partition.leases) == 0

    asyncio.run(main())


def test_a_killed_fillers_lease_ends_by_itself(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody comes back: one who waited gets the lease, and the next one waits for that one."""
    monkeypatch.setattr(leasing, "LEASE_S", 0.5)

    async def main() -> None:
        assert at_once(ask(owner, ONE, 7)) == [True]
        [row] = await rows_of(ask(owner, OTHER, 7))
        assert (row.served, row.needs_source, row.leased) == (False, True, True)
        assert isinstance(ask(owner, ONE, 7), asyncio.Task)

    asyncio.run(main())


@pytest.mark.parametrize("kept", ["nothing", "refused"])
def test_who_waited_in_vain_reads_the_source(owner: Owner, kept: str) -> None:
    """The filler's source failed, or its fill was refused. Over a refused stamp nobody is made to wait again."""

    async def main() -> None:
        first = ask(owner, ONE, 7)
        assert isinstance(first, list)
        waiting = ask(owner, OTHER, 7)
        await asyncio.sleep(0)
        below = gtid(1) if kept == "refused" else ""
        owner.fold(start(epoch=2), marker(1, epoch=2))
        assert not fill(owner, first[0].stamp, lo=below).accepted
        [row] = await rows_of(waiting)
        assert (row.served, row.needs_source) == (False, True)

    asyncio.run(main())


def test_a_fill_that_is_refused_makes_nobody_wait_again(owner: Owner) -> None:
    """Of a key that can't be kept each front reads for itself, until the key changes."""

    async def main() -> None:
        owner.fold(schema(4, cacheable=False, reason="no primary key"), marker(4))
        found = ask(owner, ONE, 7)
        assert isinstance(found, list)
        if found[0].leased:
            assert not fill(owner, found[0].stamp).accepted
        assert at_once(ask(owner, ONE, 7)) == [False]
        assert at_once(ask(owner, OTHER, 7)) == [False]

    asyncio.run(main())


def test_a_batch_that_has_to_read_anyway_does_not_wait(owner: Owner) -> None:
    """Two batches that each hold what the other wants would wait for each other."""

    async def main() -> None:
        assert at_once(ask(owner, ONE, 1, 2)) == [True, True]
        assert at_once(ask(owner, OTHER, 2, 3)) == [False, True]
        assert isinstance(ask(owner, ONE, 3), asyncio.Task)

    asyncio.run(main())


def row(*, served: bool = False, needs_source: bool = True, stamp: bytes = b"stamp") -> OwnerRow:
    """An answer of which only its need matters."""
    return OwnerRow(0, None, "unknown", "", served, needs_source, "shop/0", 1, "", "", 0, "", "", stamp)


@pytest.mark.parametrize(
    ("beside", "waits"),
    [
        ([], True),
        ([row(stamp=b"unkept")], False),
        ([row(stamp=b"")], False),
        ([row(), row(served=True, needs_source=False)], False),
        ([row(served=True, needs_source=False)], True),
        ([row(served=True)], True),
        ([row(needs_source=False)], True),
    ],
)
def test_only_who_reads_the_source_anyway_is_spared_the_wait(beside: list[OwnerRow], waits: bool) -> None:
    """Rows that are served, or that no source can answer, send nobody to the source: the batch waits as if alone."""

    async def main() -> None:
        leases = leasing.Leases()
        leases.end(b"0", unkept=b"unkept")
        leases.take([b"taken"], [row()], ONE, 0.0)
        keys = [b"%d" % number for number in range(len(beside))]
        assert (leases.take([*keys, b"taken"], [*beside, row()], OTHER, 0.0) is not None) == waits
        kept = [each.needs_source and not each.served and each.stamp == b"stamp" for each in beside]
        assert [each.leased for each in beside] == kept

    asyncio.run(main())


@pytest.mark.parametrize("keys", [[b"short", b"long"], [b"long", b"short"]])
def test_a_batch_waits_for_all_that_others_read(keys: list[bytes]) -> None:
    """For the one that may take longest: the others have ended by then, or it has to read them itself."""

    async def main() -> None:
        leases = leasing.Leases()
        leases.take([b"short"], [row()], ONE, 0.0)
        leases.take([b"long"], [row()], ONE, 0.1)
        awaited = leases.take(keys, [row(), row()], OTHER, 0.2)
        assert awaited is not None
        leases.end(b"short")
        assert not awaited.ended.done()
        leases.end(b"long")
        assert awaited.ended.done()

    asyncio.run(main())


def test_followers_and_fronts_without_the_right_to_fill_get_no_lease(owner: Owner) -> None:
    """A follower is sent no fills, and a front that may not fill could not end a lease. Nor can one of before."""

    async def main() -> None:
        assert at_once(ask(owner, "", 7)) == [False]
        request = Get(1, KEYSPACE, 0, [key(7)], holder=ONE)
        refuse(Grant("a front", frozenset({READ, FILL})), request)
        assert request.holder == ONE
        refuse(Grant("a reader", frozenset({READ})), request)
        assert request.holder == ""
        owner.server.stands = lambda *_: Standing("a:1", "somebody else", "t", "", 1, 1, [])
        assert at_once(ask(owner, ONE, 7)) == [False]

    asyncio.run(main())


def test_leases_are_bounded(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many nobody waits; those that have ended make room."""
    monkeypatch.setattr(leasing, "LEASES_MAX", 2)
    monkeypatch.setattr(leasing, "LEASE_S", 0.5)

    async def main() -> None:
        assert at_once(ask(owner, ONE, 1, 2, 3)) == [True, True, False]
        assert at_once(ask(owner, OTHER, 3)) == [False]
        await rows_of(ask(owner, OTHER, 1))
        assert at_once(ask(owner, OTHER, 3)) == [True]

    asyncio.run(main())


def test_what_could_not_be_kept_is_remembered_of_the_last_keys_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any key may be asked for, and each has a stamp: memory would grow with every one that nobody may fill."""
    monkeypatch.setattr(leasing, "_UNKEPT_MAX", 2)

    async def main() -> None:
        leases = leasing.Leases()
        for name in (b"a", b"b", b"a", b"c"):
            leases.end(name, unkept=b"stamp")
        rows = {name: row() for name in (b"a", b"b", b"c")}
        leases.take(list(rows), list(rows.values()), ONE, 0.0)
        assert {name: each.leased for name, each in rows.items()} == {b"a": False, b"b": True, b"c": False}

    asyncio.run(main())


def test_a_fill_that_cannot_be_read_ends_its_lease_all_the_same(owner: Owner) -> None:
    """Its front is done with the key: those that wait would wait for nobody."""

    async def main() -> None:
        first = ask(owner, ONE, 7)
        assert isinstance(first, list)
        with pytest.raises(TokenError):
            fill(owner, first[0].stamp, lo="nonsense")
        assert len(owner.partition.leases) == 0

    asyncio.run(main())
