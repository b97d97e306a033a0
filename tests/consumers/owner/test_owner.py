"""The owner protocol over a real socket: decisions, waiting, fills, limits."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from consumers.fold.entry import ABSENT, VALUE, VOID
from consumers.fold.state import Lineage
from consumers.owner.client import OwnerClient
from consumers.owner.protocol import (
    UNKNOWN_KEY,
    Drain,
    Fill,
    OwnerError,
    Status,
    Statuses,
    Verdict,
    Verified,
)
from consumers.owner.reporting import partition_status
from consumers.store.store import StoreView
from stream.wire.codec import encode
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import LAYOUT, SHARD, event, frame, gtid, key, marker, start, value
from tests.consumers.owning import KEYSPACE, Owner, schema, vector

NO_ANCESTORS: dict[str, list[object]] = {"ancestors": [], "succeeded": []}


def fill_of(row, number: int, image: bytes | None, sequence: int) -> Fill:  # type: ignore[no-untyped-def]
    """What a front offers after it has read ``image`` at ``sequence``."""
    return Fill(0, KEYSPACE, 0, key(number), image, gtid(sequence), gtid(sequence), 1_700_000_000, row.stamp)


def test_a_value_at_or_past_the_demand_is_fresh_and_says_why(owner: Owner) -> None:
    """A demand that the watermark covers is answered from the cache, with the positions a session needs."""

    async def use(client: OwnerClient) -> None:
        [row] = await client.get(KEYSPACE, 0, [key(1)], vector(3))
        assert (row.kind, row.image, row.freshness, row.served) == (VALUE, b'{"id":1}', "fresh", True)
        assert (row.lo, row.hi, row.watermark, row.shard, row.epoch) == (gtid(3), gtid(3), gtid(3), SHARD, 1)
        assert "ordinal 3" in row.why

    owner.run(use)


def test_without_a_token_an_answer_is_eventual_never_fresh(owner: Owner) -> None:
    """A demand without a token is never answered as fresh."""

    async def use(client: OwnerClient) -> None:
        [row] = await client.get(KEYSPACE, 0, [key(1)])
        assert (row.freshness, row.served) == ("eventual", True)

    owner.run(use)


def test_a_demand_ahead_of_the_watermark_is_not_served_and_its_image_not_sent(owner: Owner) -> None:
    """An image that is not proved fresh does not leave the owner."""

    async def use(client: OwnerClient) -> None:
        [row] = await client.get(KEYSPACE, 0, [key(1)], vector(9))
        assert (row.freshness, row.served, row.image, row.needs_source) == ("stale", False, None, False)

    owner.run(use)


def test_a_read_waits_until_the_watermark_moves(owner: Owner) -> None:
    """A reader that follows a write waits for the stream instead of going to the source."""

    async def use(client: OwnerClient) -> None:
        waiting = asyncio.create_task(client.get(KEYSPACE, 0, [key(1)], vector(5), 5000))
        while not owner.partition.waiters:  # noqa: ASYNC110 - what is waited for is in this thread
            await asyncio.sleep(0)
        owner.fold(value(1, b'{"id":2}', 5), marker(5))
        [row] = await waiting
        assert (row.image, row.freshness) == (b'{"id":2}', "fresh")

    owner.run(use)


def test_a_wait_ends_in_time_with_the_decision_as_it_is(owner: Owner) -> None:
    """``max_wait_ms`` bounds the wait."""

    async def use(client: OwnerClient) -> None:
        began = asyncio.get_running_loop().time()
        [row] = await client.get(KEYSPACE, 0, [key(1)], vector(9), 50)
        assert row.freshness == "stale"
        assert 0.04 < asyncio.get_running_loop().time() - began < 5
        waited = await client.wait(KEYSPACE, 0, vector(9), 20)
        assert not waited.reached
        assert waited.watermarks == vector(3)
        assert (await client.wait(KEYSPACE, 0, vector(3), 0)).reached

    owner.run(use)
    assert owner.server.waiting == 0


def test_a_key_that_only_the_source_knows_is_answered_at_once(owner: Owner) -> None:
    """Reads of unknown and void keys don't wait, because no marker brings a value."""
    owner.fold(frame([(key(2), VOID, b"", 4)]), marker(4))

    async def use(client: OwnerClient) -> None:
        rows = await client.get(KEYSPACE, 0, [key(7), key(2)], vector(4), 60_000)
        assert [row.kind for row in rows] == [UNKNOWN_KEY, VOID]
        assert "too large for the stream" in rows[1].why
        assert all(row.needs_source and not row.served for row in rows)

    owner.run(use)


def test_a_lost_history_is_named(owner: Owner) -> None:
    """A vector of an epoch that is over can't be satisfied by waiting; the front answers 409."""
    owner.fold(start(epoch=2), value(1, b"{}", 2, epoch=2), marker(2, epoch=2))

    async def use(client: OwnerClient) -> None:
        [row] = await client.get(KEYSPACE, 0, [key(1)], vector(3, epoch=1), 60_000)
        assert (row.code, row.served, row.needs_source) == ("history_lost", False, True)

    owner.run(use)


def test_a_fill_answers_until_its_key_changes(owner: Owner) -> None:
    """A fill of an unknown key is fresh up to its lo or the watermark; an event of the key invalidates it."""

    async def use(client: OwnerClient) -> None:
        [row] = await client.get(KEYSPACE, 0, [key(7)], vector(3))
        assert (await client.fill(fill_of(row, 7, b'{"id":7}', 5))).accepted
        [row] = await client.get(KEYSPACE, 0, [key(7)], vector(5))
        assert (row.image, row.freshness, row.filled, row.hi) == (b'{"id":7}', "fresh", True, gtid(5))
        [row] = await client.get(KEYSPACE, 0, [key(7)], vector(6))
        assert (row.served, row.needs_source) == (False, False)
        owner.fold(marker(6))
        [row] = await client.get(KEYSPACE, 0, [key(7)], vector(6))
        assert row.freshness == "fresh"
        owner.fold(frame([(key(7), VOID, b"", 7)]), marker(7))
        [row] = await client.get(KEYSPACE, 0, [key(7)])
        assert (row.served, row.needs_source) == (False, True)

    owner.run(use)


def test_a_fill_over_a_changed_key_is_refused(owner: Owner) -> None:
    """CAS refuses a fill if an event was folded between the read and the fill."""

    async def use(client: OwnerClient) -> None:
        [row] = await client.get(KEYSPACE, 0, [key(7)])
        owner.fold(frame([(key(7), ABSENT, b"", 4)]), marker(4))
        filled = await client.fill(fill_of(row, 7, b'{"id":7}', 9))
        assert not filled.accepted
        assert "changed since it was read" in filled.why

    owner.run(use)


def test_fills_keep_to_the_low_water_and_the_watermark(owner: Owner) -> None:
    """A value read before the watermark may be older than an event whose tombstone was dropped."""

    async def use(client: OwnerClient) -> None:
        [row] = await client.get(KEYSPACE, 0, [key(7)])
        assert not (await client.fill(fill_of(row, 7, b"{}", 2))).accepted
        [row] = await client.get(KEYSPACE, 0, [key(1)])
        refused = await client.fill(fill_of(row, 1, b"{}", 9))
        assert not refused.accepted
        assert "stream already has a value" in refused.why

    owner.run(use)


def test_a_newer_fill_is_not_replaced_by_an_older_one(owner: Owner) -> None:
    """Of two racing readers the value that was read later is kept."""

    async def use(client: OwnerClient) -> None:
        [row] = await client.get(KEYSPACE, 0, [key(7)])
        assert (await client.fill(fill_of(row, 7, b'{"v":9}', 9))).accepted
        assert not (await client.fill(fill_of(row, 7, b'{"v":8}', 8))).accepted
        [row] = await client.get(KEYSPACE, 0, [key(7)])
        assert row.image == b'{"v":9}'

    owner.run(use)


@pytest.mark.parametrize(
    ("fields", "image", "why"),
    [
        ({"primary_key": ["name"]}, None, "collation"),
        ({"cacheable": False, "reason": "engine MEMORY"}, b"{}", "read through"),
    ],
)
def test_what_a_schema_forbids_is_not_kept(owner: Owner, fields: dict, image: bytes | None, why: str) -> None:  # type: ignore[type-arg]
    """Absence under a collation, and tables that are always read through, stay out of the overlay."""
    owner.fold(schema(4, **fields), marker(4))

    async def use(client: OwnerClient) -> None:
        [row] = await client.get(KEYSPACE, 0, [key(7)])
        refused = await client.fill(fill_of(row, 7, image, 9))
        assert not refused.accepted
        assert why in refused.why

    owner.run(use)


def test_absence_is_kept_for_exact_keys(owner: Owner) -> None:
    """A row that the source does not have is answered as absent from the overlay."""

    async def use(client: OwnerClient) -> None:
        [row] = await client.get(KEYSPACE, 0, [key(7)])
        assert (await client.fill(fill_of(row, 7, None, 9))).accepted
        [row] = await client.get(KEYSPACE, 0, [key(7)], vector(9))
        assert (row.kind, row.image, row.freshness) == (ABSENT, None, "fresh")

    owner.run(use)


def test_the_absence_of_a_row_of_a_whole_table_is_proved_by_the_watermark(owner: Owner) -> None:
    """A demand that the watermark has reached is answered, a later one is not, and one before the table is whole."""
    topology = encode("Topology", {"shard": SHARD, "epoch": 1, "ordinal": 3, "shards": [SHARD], **NO_ANCESTORS})

    async def use(client: OwnerClient) -> None:
        owner.fold(topology, event("TableBackfill", 4, table="shop.items", complete=False))
        [row] = await client.get(KEYSPACE, 0, [key(7)], vector(3))
        assert (row.served, row.needs_source) == (False, True)
        owner.fold(event("TableBackfill", 5, table="shop.items", complete=True), marker(9))
        [row] = await client.get(KEYSPACE, 0, [key(7)], vector(9))
        assert (row.kind, row.image, row.freshness, row.hi) == (ABSENT, None, "fresh", gtid(5))
        assert "shop.items is complete since" in row.why
        assert (await client.status()).partitions[0].tables == {"shop.items": True}
        [row] = await client.get(KEYSPACE, 0, [key(7)], vector(10))
        assert (row.served, row.freshness) == (False, "stale")

    owner.run(use)


def test_a_table_void_hides_fills_and_values(owner: Owner) -> None:
    """After a table void nothing of the table is served, and a fill must have reached the void's floor."""

    async def use(client: OwnerClient) -> None:
        [row] = await client.get(KEYSPACE, 0, [key(7)])
        assert (await client.fill(fill_of(row, 7, b"{}", 3))).accepted
        owner.fold(event("TableVoid", 4, table="shop.items", reason="DDL"), marker(4))
        rows = await client.get(KEYSPACE, 0, [key(1), key(7)])
        assert [(row.served, row.needs_source) for row in rows] == [(False, True), (False, True)]
        assert (await client.fill(fill_of(rows[0], 1, b"{}", 4))).accepted

    owner.run(use)


def test_describe_and_status_say_what_a_front_needs(owner: Owner) -> None:
    """Describe gives columns, key and layout; status gives offsets, watermarks and readiness."""

    async def use(client: OwnerClient) -> None:
        described = await client.describe(KEYSPACE, "shop.items")
        assert (described.found, described.layout, described.primary_key) == (True, LAYOUT, ["id"])
        assert [column.exact for column in described.columns] == [True, False]
        assert not (await client.describe(KEYSPACE, "shop.none")).found
        status = await client.status()
        assert status.ready
        [partition] = status.partitions
        assert (partition.offset, partition.shards[0].watermark) == (5, gtid(3))

    owner.run(use)


def test_a_checkpoint_holds_the_state_at_its_offset(owner: Owner) -> None:
    """Spark rebuilds to this offset and compares."""
    digest = owner.partition.store.digest()

    async def use(client: OwnerClient) -> None:
        [place] = await client.checkpoint(KEYSPACE)
        assert (place.partition, place.offset) == (0, 5)
        with StoreView(Path(place.directory)) as view:
            assert view.digest() == digest
        assert await client.checkpoint(KEYSPACE, 0) == [place]

    owner.run(use)


def test_the_overlay_is_bounded_and_forgets_the_least_recently_used(tmp_path: Path) -> None:
    """Fills take at most ``overlay_bytes``."""
    owner = Owner(tmp_path, overlay_bytes=5_000)
    owner.fold(start(), marker(1), schema(2), marker(2))

    async def use(client: OwnerClient) -> None:
        for number in range(30):
            [row] = await client.get(KEYSPACE, 0, [key(number)])
            assert (await client.fill(fill_of(row, number, b"x" * 100, 3))).accepted
            assert owner.partition.overlay.bytes <= 5_000
        rows = await client.get(KEYSPACE, 0, [key(0), key(29)])
        assert [row.served for row in rows] == [False, True]
        assert owner.partition.overlay.evictions > 0
        [row] = await client.get(KEYSPACE, 0, [key(99)])
        assert not (await client.fill(fill_of(row, 99, b"x" * 6_000, 3))).accepted

    owner.run(use)


def test_what_an_audit_found_is_told_by_the_status(owner: Owner) -> None:
    """Of the partitions that the process owns; of others nothing is remembered."""

    async def use(client: OwnerClient) -> None:
        assert (await client.status()).partitions[0].verdict is None
        verdicts = [Verdict(0, 7, True, 1_000), Verdict(5, 7, False, 1_000)]
        await client.request(Verified(0, KEYSPACE, verdicts))
        [partition] = (await client.status()).partitions
        assert partition.verdict == verdicts[0]
        await client.request(Verified(0, "another", [Verdict(0, 9, False, 2_000)]))
        assert (await client.status()).partitions[0].verdict == verdicts[0]

    owner.run(use)


def test_a_process_is_not_ready_while_a_partition_is_awaited_or_unopened(owner: Owner) -> None:
    """A rolling update waits for this: what it still has to take over nobody else may answer for."""
    ownership = owner.ownership
    assert ownership.is_ready
    ownership.unopened = frozenset({(KEYSPACE, 1)})
    assert not ownership.is_ready
    ownership.unopened, ownership.awaited_keyspaces = frozenset(), frozenset({"another"})
    assert not ownership.is_ready
    owner.partition.store.close(commit=False)


@pytest.mark.parametrize(
    ("position", "end", "timestamp", "as_of", "lag"),
    [
        (5, 5, 90, 0, 0.0),
        (5, 6, 90, 0, 10.0),
        (5, 6, 0, 0, -1.0),
        (5, 6, 101, 0, 0.0),
        (0, 0, 0, 0, 0.0),
        (5, -1, 90, 0, 10.0),
        (5, -1, 0, 0, -1.0),
        (5, 6, 10, 99, 1.0),
        (5, 6, 0, 99, 1.0),
        (5, 6, 90, 80, 10.0),
    ],
)
def test_a_partition_is_behind_unless_all_of_its_topic_is_read(
    owner: Owner, position: int, end: int, timestamp: int, as_of: int, lag: float
) -> None:
    """Where the topic ends may not be known yet: then nothing says that all is read. A shard that is idle for hours is
    not behind by that: its markers say as of when there was nothing else."""
    owner.partition.position, owner.partition.end = position, end
    lineage = Lineage(1, 0, 0, "", timestamp, "", as_of_ms=as_of * 1_000)
    assert owner.partition.lag_seconds(100, SHARD, lineage) == lag
    owner.partition.store.close(commit=False)


def test_a_shard_that_another_one_has_succeeded_is_not_behind(owner: Owner) -> None:
    """It says nothing any more: it seemed months behind while anything in the partition was unread."""
    succession = topology(SHARD, "shop/1", shard="shop/1", ancestors={SHARD: 1})
    owner.fold(start(), marker(1, timestamp=1_000), start(shard="shop/1"), succession, marker(1, shard="shop/1"))
    owner.partition.position, owner.partition.end = 5, 6
    shards = partition_status(owner.partition, 1_700_000_060).shards
    assert [(each.shard, each.lag_seconds) for each in shards] == [(SHARD, 0.0), ("shop/1", 60.0)]
    owner.partition.store.close(commit=False)


def test_who_has_a_part_of_another_topic_answers_nothing_of_the_whole(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a topic that was made anew is taken over, some partitions are of the one before."""
    topics = [SimpleNamespace(topic=SimpleNamespace(topic_id=each)) for each in ("new", "old")]
    monkeypatch.setattr(owner.server.ownership, "of", lambda _: topics)
    for asked in ("new", "old"):
        with pytest.raises(OwnerError, match=f"follows another topic as {KEYSPACE} than {asked}"):
            owner.server.answer(Status(1, KEYSPACE, asked))


def test_an_owner_says_whether_it_may_get_partitions_amid_a_drain(tmp_path: Path) -> None:
    """That it has none at a moment does not say that it may be stopped."""
    owner = Owner(tmp_path)
    owner.server.drain = lambda: setattr(owner.ownership, "is_asked_to_drain", True)

    async def use(client: OwnerClient) -> None:
        said = [await client.status()]
        for drained in (False, True):
            owner.ownership.is_drained = drained
            answer = await client.request(Drain(0))
            assert isinstance(answer, Statuses)
            said += [answer, await client.status()]
        assert [each.draining for each in said] == [False, True, True, False, False]

    owner.run(use)
