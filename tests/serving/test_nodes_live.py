"""Nodes as processes over real servers: found by file, hints and peers; joined, left, and woken from the dead."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers.owner.client import OwnerClient
from consumers.owner.protocol import Fill, OwnerRow
from consumers.process.announcing import ERA_BITS
from freshet.local.mariadb import MariaDBAddress
from serving.client import ClientError, FreshetClient, Session
from serving.client.session import Consistency
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import Announcement, LocationsReader
from stream.kafka.reader import end_offsets
from stream.kafka.topics import events_topic
from stream.wire.keys import Layout, row_key
from tests.servers.databases import own_database
from tests.serving.nodes import PARTITIONS, NodeStack
from tests.serving.stack import eventually

TABLES = ("CREATE TABLE accounts (id INT PRIMARY KEY, n INT)", "INSERT INTO accounts SELECT seq, 0 FROM seq_1_to_200")
WAIT_MS = 10_000
CONSISTENCIES: tuple[Consistency, ...] = ("bounded", "any", "leader")
NOWHERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def nodes(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeStack]:
    """Three nodes of one group, and a follower of them."""
    keyspace = f"ks{uuid.uuid4().hex[:10]}"
    with (
        own_database(mariadb, *TABLES) as database,
        NodeStack(tmp_path_factory.mktemp("nodes"), kafka, mariadb, keyspace, database) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def reader(kafka: KafkaCluster) -> Iterator[LocationsReader]:
    """All announcements."""
    with LocationsReader(kafka) as running:
        yield running


def write(stack: NodeStack, session: Session, value: int, *numbers: int) -> None:
    """The session writes this value into rows."""
    with session.wrap(stack.connect(), shard=stack.shard) as connection, connection.cursor() as cursor:
        for number in numbers:
            cursor.execute("REPLACE INTO accounts VALUES (%s, %s)", (number, value))


def read_from_the_cache(stack: NodeStack, session: Session, value: int, numbers: list[int]) -> None:
    """Each row has this value at once, and comes from the cache soon: what was never folded is not waited for."""

    def read() -> bool:
        rows = [session.get_row(stack.keyspace, "accounts", each, max_wait_ms=WAIT_MS) for each in numbers]
        assert [row.value and row.value["n"] for row in rows] == [value] * len(numbers)
        return all(row.served_from == "cache" for row in rows)

    eventually(read, what="rows from the cache")


def partition_of(stack: NodeStack, number: int) -> int:
    """Where a row's key belongs."""
    return Layout(PARTITIONS).partition_of(key_of(stack, number))


def key_of(stack: NodeStack, number: int) -> bytes:
    """The key of a row in its store."""
    return row_key(f"{stack.database}.accounts", [number])


def numbers_of(stack: NodeStack, partitions: list[int]) -> list[int]:
    """A row of each of the partitions."""
    return [next(n for n in range(1, 201) if partition_of(stack, n) == each) for each in partitions]


def shared(stack: NodeStack, reader: LocationsReader, *roles: str) -> bool:
    """Whether these nodes, and no others, own all partitions."""
    shares = stack.shares(reader)
    return sorted(shares) == sorted(roles) and sum(map(len, shares.values())) == PARTITIONS


def test_every_node_answers_for_all_partitions_and_tells_where_its_front_is(
    nodes: NodeStack, reader: LocationsReader
) -> None:
    """A session's write is read from the cache through each of them, also through the follower."""
    eventually(lambda: shared(nodes, reader, "node-0", "node-1", "node-2"), what="partitions of each")
    eventually(lambda: all(reader.followers(nodes.keyspace, each) for each in range(PARTITIONS)), what="a follower")
    numbers = numbers_of(nodes, list(range(PARTITIONS)))
    for turn, url in enumerate(nodes.fronts.values(), 1):
        with FreshetClient(url) as client:
            session = client.session()
            write(nodes, session, turn, *numbers)

            read_from_the_cache(nodes, session, turn, numbers)
    announced = [*reader.owners(nodes.keyspace).values(), *reader.followers(nodes.keyspace, 0)]
    assert {each.front for each in announced} == set(nodes.fronts.values())


def test_a_front_without_kafka_finds_owners_by_its_file_its_peers_and_hints(
    nodes: NodeStack, reader: LocationsReader, tmp_path: Path
) -> None:
    """It starts while Kafka is away, and follows partitions that move to a node of which it has never heard.

    What the file says is confirmed by the nodes that it names. A node that has lost a partition names who has it now.
    """
    file = tmp_path / "locations"
    # of partitions that move between the file and the front that has it alone, only reads are told where they are
    eventually(lambda: shared(nodes, reader, "node-0", "node-1", "node-2"), what="partitions of each")
    nodes.lone_front(nodes.kafka.bootstrap, file)
    nodes.stop("lone")
    assert file.exists()
    url = nodes.lone_front(NOWHERE, file)
    numbers = numbers_of(nodes, list(range(PARTITIONS)))
    before = nodes.shares(reader)
    with FreshetClient(url) as client:
        session = client.session()

        def read_all(value: int) -> None:
            write(nodes, session, value, *numbers)
            read_from_the_cache(nodes, session, value, numbers)

        read_all(101)
        eventually(lambda: nodes.events(url).get("installed_peers", 0) >= PARTITIONS, what="the peers' word")
        added = nodes.describe_node("b")
        nodes.start(added)
        try:
            eventually(lambda: shared(nodes, reader, *before, added), what="a share of the new node")
            read_all(102)
            assert nodes.events(url).get("installed_hint", 0) >= len(nodes.shares(reader)[added])
            assert nodes.events(url).get("installed_push", 0) == 0
        finally:
            nodes.stop(added)
            nodes.stop("lone")
    eventually(lambda: shared(nodes, reader, *before), what="the others' shares again")


class Reader:
    """Clients that find nodes: each session writes a row, reads it back, and reads what it wrote before."""

    def __init__(self, stack: NodeStack, consistency: Consistency, *, cached: bool = False) -> None:
        """``cached``: an answer of the source is wrong, once the cache has answered for a row: what was never folded is
        not waited for."""
        self.stack, self.consistency, self.cached = stack, consistency, cached
        self.turns = 1000  # a write that changes nothing is no commit
        self.wrong: list[str] = []
        self._folded = set[int]()
        self._stopping = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        homes = list(self.stack.fronts.values())[:2]
        with FreshetClient(homes, route=True, consistency=self.consistency) as client:
            session, written = client.session(), dict[int, int]()
            with session.wrap(self.stack.connect(), shard=self.stack.shard) as connection:
                while not self._stopping.is_set():
                    number = 100 + 3 * (self.turns % 10) + CONSISTENCIES.index(self.consistency)
                    with connection.cursor() as cursor:
                        cursor.execute("REPLACE INTO accounts VALUES (%s, %s)", (number, self.turns))
                    written[number] = self.turns
                    self.wrong += [
                        found for each in (number, min(written)) if (found := self._read(session, each, written))
                    ]
                    self.turns += 1

    def _read(self, session: Session, number: int, written: dict[int, int]) -> str:
        try:
            row = session.get_row(self.stack.keyspace, "accounts", number, max_wait_ms=WAIT_MS if self.cached else None)
        except ClientError as error:
            return f"refused: {error.code}: {error}"
        right = row.freshness == "fresh" and row.value is not None and row.value["n"] == written[number]
        if row.served_from == "cache":
            self._folded.add(number)
        elif self.cached and number in self._folded:
            right = False
        return "" if right else f"{row} instead of {written[number]}"

    def has_gone_on(self, turns: int) -> bool:
        """Whether it has read more than that."""
        return self.turns > turns

    def stop(self) -> None:
        """Ends it."""
        self._stopping.set()
        self.thread.join()


def go_on(readers: list[Reader]) -> None:
    """Waits until each has read some more."""
    turns = [each.turns + 20 for each in readers]
    for each, before in zip(readers, turns, strict=True):
        eventually(lambda each=each, before=before: each.has_gone_on(before), what="more reads")  # type: ignore[misc]


def test_sessions_that_find_nodes_read_their_writes_while_nodes_are_killed_stopped_and_ended(
    nodes: NodeStack, reader: LocationsReader
) -> None:
    """No read is refused and none is stale, whichever node it is sent to and whatever that one meets."""
    readers = [Reader(nodes, "bounded"), Reader(nodes, "any")]
    for each in readers:
        each.thread.start()
    try:
        go_on(readers)
        nodes.kill("node-1")
        go_on(readers)
        nodes.start("node-1")
        nodes.signal("node-2", signal.SIGSTOP)
        try:
            go_on(readers)
        finally:
            nodes.signal("node-2", signal.SIGCONT)
        assert nodes.stop("node-0") == 0
        go_on(readers)
        nodes.start("node-0")
        go_on(readers)
    finally:
        for each in readers:
            each.stop()
    assert [each.wrong for each in readers] == [[], []]
    eventually(lambda: shared(nodes, reader, "node-0", "node-1", "node-2"), what="everybody's share again")


def test_a_node_that_is_drained_gives_its_partitions_away_and_no_read_goes_to_the_source(
    nodes: NodeStack, reader: LocationsReader
) -> None:
    """Sessions read their writes from the cache before, while and after the others take over, and when it is back.

    A node that joins gets its share in the same way.
    """
    drained = "node-1"
    eventually(lambda: shared(nodes, reader, "node-0", "node-1", "node-2"), what="everybody's share")
    others = [role for role in nodes.shares(reader) if role != drained]
    readers = [Reader(nodes, each, cached=True) for each in ("bounded", "leader")]
    for each in readers:
        each.thread.start()
    try:
        go_on(readers)
        said = nodes.drain(drained)
        eventually(lambda: shared(nodes, reader, *others), what="the others' announcements")
        go_on(readers)
        assert nodes.stop(drained) == 0
        go_on(readers)
        nodes.start(drained)
        eventually(lambda: shared(nodes, reader, *others, drained), what="a share again")
        go_on(readers)
    finally:
        for each in readers:
            each.stop()
    assert [each.wrong for each in readers] == [[], []]
    assert said.endswith(f"127.0.0.1:{nodes.owner_ports[drained]} has no partitions any more: it can be stopped\n")


@pytest.mark.nightly
def test_one_partition_is_moved_to_a_follower_and_back_and_no_read_goes_to_the_source(
    nodes: NodeStack, reader: LocationsReader
) -> None:
    """The others stay where they are; the group's owner goes on folding, so the way back is as short."""
    eventually(lambda: shared(nodes, reader, "node-0", "node-1", "node-2"), what="everybody's share")
    follower = next(role for role in nodes.owner_ports if role not in nodes.shares(reader))
    eventually(lambda: reader.followers(nodes.keyspace, 0), what="a follower")
    before = {role: list(partitions) for role, partitions in nodes.shares(reader).items()}
    owner = next(role for role, partitions in before.items() if 0 in partitions)
    rest = {role: [each for each in partitions if each] for role, partitions in before.items()}
    moved = {role: partitions for role, partitions in (rest | {follower: [0]}).items() if partitions}
    other = next(role for role in before if role != owner)
    readers = [Reader(nodes, each, cached=True) for each in ("bounded", "leader")]
    for each in readers:
        each.thread.start()
    try:
        go_on(readers)
        said = nodes.move(0, follower)
        eventually(lambda: nodes.shares(reader) == moved, what="the word of it")
        go_on(readers)
        with pytest.raises(AssertionError, match=r"swap_refused.*do not own the partitions \[0\]"):
            nodes.move(0, other)  # its group has given it to another member
        nodes.move(0, owner)
        go_on(readers)
    finally:
        for each in readers:
            each.stop()
    assert [each.wrong for each in readers] == [[], []]
    assert nodes.shares(reader) == before
    back = f"back: freshet cluster move {nodes.keyspace} 0 127.0.0.1:{nodes.owner_ports[owner]}"
    assert said == f"moved {nodes.keyspace}/0 to 127.0.0.1:{nodes.owner_ports[follower]}; {back}\n"


def test_an_owner_that_wakes_up_proves_what_it_says_and_takes_nothing_back(
    nodes: NodeStack, reader: LocationsReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zombie: stopped until its group has given its partitions away, asked in its sleep, and woken.

    With a token it proves its answer, or gives none. Without one it may tell its old state, never as fresh. It takes no
    fill that is older than its state; its checkpoint is of an offset of the log; it never announces itself above the
    new owner.
    """
    heard: list[Announcement] = []
    apply = LocationsReader._learn

    def listening(self: LocationsReader, messages: Any) -> None:
        apply(self, messages)
        if self is reader:
            heard.extend(reader.owners(nodes.keyspace).values())

    monkeypatch.setattr(LocationsReader, "_learn", listening)
    eventually(lambda: shared(nodes, reader, "node-0", "node-1", "node-2"), what="everybody's share")
    eventually(lambda: all(each.group for each in reader.owners(nodes.keyspace).values()), what="owners that go on")
    zombie = next(role for role in nodes.shares(reader) if role != "node-0")
    partition = nodes.shares(reader)[zombie][0]
    [number] = numbers_of(nodes, [partition])
    others = [role for role in nodes.shares(reader) if role != zombie]
    era = max(each.generation for each in reader.owners(nodes.keyspace).values()) >> ERA_BITS
    with FreshetClient(nodes.url) as client:
        session = client.session()
        write(nodes, session, 201, number)
        assert session.get_row(nodes.keyspace, "accounts", number, max_wait_ms=WAIT_MS).served_from == "cache"
        answers = asyncio.run(_ask_in_its_sleep(nodes, reader, zombie, others, session, partition, number))
        tokened, untokened, staleness, filled, places = answers
        row = session.get_row(nodes.keyspace, "accounts", number, max_wait_ms=WAIT_MS)
        assert row.value is not None
        assert (row.freshness, row.value["n"]) == ("fresh", 202)
    assert not tokened.served or tokened.image == b'{"id":%d,"n":202}' % number
    assert untokened.freshness == "eventual"
    assert untokened.image in (b'{"id":%d,"n":201}' % number, b'{"id":%d,"n":202}' % number)
    assert not staleness.served or staleness.image == b'{"id":%d,"n":202}' % number
    assert not filled, "a value that was read before the stamp's state is not newer than it"
    assert places <= end_of(nodes, partition)
    claimed = [each.generation >> ERA_BITS for each in heard if nodes.role_of(each) == zombie]
    assert max(claimed, default=0) <= era, "it claimed a new era"
    eventually(lambda: shared(nodes, reader, *others, zombie), what="its share again")


async def _ask_in_its_sleep(
    nodes: NodeStack,
    reader: LocationsReader,
    zombie: str,
    others: list[str],
    session: Session,
    partition: int,
    number: int,
) -> tuple[OwnerRow, OwnerRow, OwnerRow, bool, int]:
    """Stops the node, has the others take over and the session write, asks it, wakes it up; what it answers."""
    owner, key = OwnerClient(f"127.0.0.1:{nodes.owner_ports[zombie]}", request_timeout_s=60.0), key_of(nodes, number)
    [known] = await owner.get(nodes.keyspace, partition, [key])
    nodes.signal(zombie, signal.SIGSTOP)
    try:
        await asyncio.to_thread(eventually, lambda: shared(nodes, reader, *others), what="the others' take-over")
        await asyncio.to_thread(write, nodes, session, 202, number)
        token, written_ms = await asyncio.to_thread(lambda: session.token), int(time.time() * 1000)
        fill = Fill(
            0, nodes.keyspace, partition, key, b'{"id":%d,"n":999}' % number, known.lo, known.lo, 0, known.stamp
        )
        asked = [
            asyncio.ensure_future(owner.get(nodes.keyspace, partition, [key], token)),
            asyncio.ensure_future(owner.get(nodes.keyspace, partition, [key])),
            asyncio.ensure_future(owner.get(nodes.keyspace, partition, [key], not_before_ms=written_ms)),
        ]
        offered = asyncio.ensure_future(owner.fill(fill))
        copied = asyncio.ensure_future(owner.checkpoint(nodes.keyspace, partition))
        await asyncio.sleep(0)
    finally:
        nodes.signal(zombie, signal.SIGCONT)
    try:
        [tokened], [untokened], [staleness] = await asyncio.gather(*asked)
        filled, [place] = await offered, await copied
    finally:
        await owner.close()
    return tokened, untokened, staleness, filled.accepted, place.offset


def end_of(nodes: NodeStack, partition: int) -> int:
    """The end of a partition's log."""
    [end] = end_offsets(nodes.kafka, events_topic(nodes.kafka, nodes.keyspace), [partition]).values()
    return end
