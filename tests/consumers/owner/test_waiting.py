"""Which requests wait, what wakes them, and what they see when their time is up. No socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.owner.partitions import Partition
from consumers.owner.protocol import Answer, Get, OwnerRow, Rows
from tests.consumers.histories import key, marker, start, value
from tests.consumers.owning import KEYSPACE, Owner, schema, vector


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    """Row 1 of ordinal 3, row 2 of ordinal 5, and the watermark at 3."""
    owner = Owner(tmp_path)
    owner.fold(start(), marker(1), schema(2), value(1, b'{"id":1}', 3), marker(3), value(2, b'{"id":2}', 5))
    yield owner
    owner.partition.store.close(commit=False)


def rows_of(answer: object) -> list[OwnerRow]:
    """The rows of an answer that came at once."""
    assert isinstance(answer, Rows)
    return answer.rows


@pytest.mark.parametrize("numbers", [(2, 1), (1, 2), (2, 1, 2)])
def test_a_request_waits_while_any_of_its_keys_can_catch_up(owner: Owner, numbers: tuple[int, ...]) -> None:
    """A key that is served already does not end the wait for another one, wherever it stands."""
    request = Get(1, KEYSPACE, 0, [key(number) for number in numbers], vector(5), 60_000)

    async def main() -> list[OwnerRow]:
        waiting = owner.server.answer(request)
        assert asyncio.iscoroutine(waiting)
        task: asyncio.Task[Answer] = asyncio.create_task(waiting)
        while not owner.partition.waiters:  # noqa: ASYNC110 - what is waited for is in this thread
            await asyncio.sleep(0)
        owner.fold(marker(5))
        return rows_of(await task)

    assert [row.served for row in asyncio.run(asyncio.wait_for(main(), 20))] == [True] * len(numbers)
    assert owner.partition.waiters == set()


def test_a_request_whose_keys_are_all_decided_does_not_wait(owner: Owner) -> None:
    """Served keys, and keys that only the source knows, are answered at once."""
    rows = rows_of(owner.server.answer(Get(1, KEYSPACE, 0, [key(2), key(7)], vector(5), 60_000)))
    assert [(row.served, row.needs_source) for row in rows] == [(True, False), (False, True)]
    [row] = rows_of(owner.server.answer(Get(1, KEYSPACE, 0, [key(1)], vector(5))))
    assert (row.served, row.needs_source) == (False, False)


def test_a_movement_between_looking_and_waiting_is_not_missed(owner: Owner) -> None:
    """A watermark that moves while the state is looked at makes the request look again."""
    looks = 0

    def is_done(partition: Partition) -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            partition.wake()
        return looks == 2

    waiting = owner.server._wait_until(owner.partition, 60_000, is_done)
    assert asyncio.run(asyncio.wait_for(waiting, 5))
    assert looks == 2
    assert owner.partition.waiters == set()


def test_a_movement_that_does_not_suffice_goes_on_waiting(owner: Owner) -> None:
    """Each movement is looked at, until one brings what is waited for."""
    looks = 0

    def is_done(partition: Partition) -> bool:
        nonlocal looks
        looks += 1
        partition.wake()
        return looks == 5

    assert asyncio.run(asyncio.wait_for(owner.server._wait_until(owner.partition, 60_000, is_done), 5))


@pytest.mark.parametrize("has_come", [True, False])
def test_at_the_time_out_it_looks_once_more(owner: Owner, has_come: bool) -> None:
    """What has arrived without a wake-up is still found when the time is up, and what has not is not claimed."""
    looks = 0

    def is_done(_: Partition) -> bool:
        nonlocal looks
        looks += 1
        return has_come and looks == 2

    assert asyncio.run(owner.server._wait_until(owner.partition, 100, is_done)) is has_come
    assert looks == 2
    assert owner.partition.waiters == set()
