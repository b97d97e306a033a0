"""Which requests wait, what wakes them, and what they see when their time is up. No socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from consumers.owner import rows
from consumers.owner.partitions import Partition
from consumers.owner.protocol import Answer, Get, OwnerRow, Rows, Wait, Waited
from consumers.owner.rows import answer_row
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import gtid, key, marker, start, value
from tests.consumers.owning import KEYSPACE, Owner, schema, vector
from tokens import Position, Vector

SHARDS = ("shop/0", "shop/1", "shop/2")
SILENT = "shop/3"
"""Has begun here, and has published no marker."""
ELSEWHERE = "shop/4"


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
    assert owner.partition.waiters == {}


def test_a_long_request_that_waits_looks_at_one_key_whenever_a_marker_comes(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a few callers who wait for what never comes, with many keys each, would keep an owner busy for ever.

    When its time is up, the answer has what is there by then.
    """
    looked_at: list[bytes] = []

    def counted(partition: Partition, asked: bytes, *more: Any) -> OwnerRow:
        looked_at.append(asked)
        return answer_row(partition, asked, *more)

    monkeypatch.setattr(rows, "answer_row", counted)
    keys = [key(1), key(2), *(key(2) for _ in range(50))]

    async def main() -> list[OwnerRow]:
        waiting = owner.server.answer(Get(1, KEYSPACE, 0, keys, vector(50), 500))
        assert asyncio.iscoroutine(waiting)
        task: asyncio.Task[Answer] = asyncio.create_task(waiting)
        for sequence in range(5, 15):
            while not owner.partition.waiters:  # noqa: ASYNC110 - what is waited for is in this thread
                await asyncio.sleep(0)
            del looked_at[:]
            owner.fold(value(1, b'{"id":%d}' % sequence, 2 * sequence), marker(2 * sequence))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert set(looked_at) <= {key(1)}
            assert len(looked_at) <= 2
        return rows_of(await task)

    assert asyncio.run(asyncio.wait_for(main(), 20))[0].lo == gtid(28)


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
    assert owner.partition.waiters == {}


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
    assert owner.partition.waiters == {}


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Owner]:
    """Several shards in one partition: the watermark of the first is at 4 of epoch 2, the others' at 5 and 6."""
    owner = Owner(tmp_path)
    owner.fold(start(epoch=2), topology(*SHARDS, SILENT, epoch=2))
    owner.fold(*(start(shard=shard) for shard in (*SHARDS[1:], SILENT)))
    owner.fold(marker(4, epoch=2), marker(5, shard=SHARDS[1]), marker(6, shard=SHARDS[2]))
    assert not owner.partition.store.visible.voids
    yield owner
    owner.partition.store.close(commit=False)


def waited_for(owner: Owner, wanted: dict[str, tuple[int, int]]) -> Waited:
    """The answer to a wait for shard → (epoch, sequence) that has no time left."""
    demand = Vector({shard: (epoch, Position.parse(gtid(sequence))) for shard, (epoch, sequence) in wanted.items()})
    waiting = owner.server.answer(Wait(1, KEYSPACE, 0, str(demand), 0))
    assert asyncio.iscoroutine(waiting)
    answer = asyncio.run(waiting)
    assert isinstance(answer, Waited)
    return answer


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*SHARDS, SILENT, ELSEWHERE]), st.tuples(st.integers(1, 3), st.integers(3, 7)), max_size=4
    )
)
@example({SHARDS[0]: (2, 4), SHARDS[1]: (1, 5), SHARDS[2]: (1, 6)})
@example({SHARDS[0]: (1, 3)})
@example({SHARDS[0]: (3, 3)})
@example({SILENT: (1, 3)})
@example({ELSEWHERE: (1, 3)})
def test_a_vector_is_reached_when_every_shard_is(sharing: Owner, wanted: dict[str, tuple[int, int]]) -> None:
    """One shard that is behind, of another epoch, silent or unknown is enough for the wait not to be over."""
    watermarks = {SHARDS[0]: (2, 4), SHARDS[1]: (1, 5), SHARDS[2]: (1, 6)}
    reached = all(
        shard in watermarks and epoch == watermarks[shard][0] and sequence <= watermarks[shard][1]
        for shard, (epoch, sequence) in wanted.items()
    )
    answer = waited_for(sharing, wanted)
    assert answer.reached is reached
    assert answer.watermarks == str(
        Vector({shard: (epoch, Position.parse(gtid(sequence))) for shard, (epoch, sequence) in watermarks.items()})
    )


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_wait_for_several_shards_ends_with_the_last_of_them(sharing: Owner, order: tuple[int, ...]) -> None:
    """Whichever shard arrives first, or last, the wait goes on while one of them is behind."""
    epochs = (2, 1, 1)
    demand = Vector({shard: (epoch, Position.parse(gtid(9))) for shard, epoch in zip(SHARDS, epochs, strict=True)})

    async def main() -> Answer:
        waiting = sharing.server.answer(Wait(1, KEYSPACE, 0, str(demand), 60_000))
        assert asyncio.iscoroutine(waiting)
        task: asyncio.Task[Answer] = asyncio.create_task(waiting)
        for index in order:
            while not (sharing.partition.waiters or task.done()):  # noqa: ASYNC110 - what is waited for is in this thread
                await asyncio.sleep(0)
            assert not task.done()
            sharing.fold(marker(9, shard=SHARDS[index], epoch=epochs[index]))
            for _ in range(5):  # the request looks again
                await asyncio.sleep(0)
        return await task

    answer = asyncio.run(asyncio.wait_for(main(), 20))
    assert isinstance(answer, Waited)
    assert answer.reached
    assert sharing.partition.waiters == {}


def test_a_read_that_has_ended_keeps_no_other_one_from_waking(owner: Owner) -> None:
    """Its time may be up, or its front gone, before a marker comes: those behind it in the order wait for that one."""

    async def main() -> None:
        gone, waits = (asyncio.get_running_loop().create_future() for _ in range(2))
        gone.cancel()
        owner.partition.waiters = {gone: None, waits: None}
        owner.partition.wake()
        assert (waits.done(), owner.partition.waiters) == (True, {})

    asyncio.run(main())
