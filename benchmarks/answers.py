"""What one answer costs front and owner: rows beside tables, partitions, statistics and constraints of a catalog.

``python -m benchmarks.answers`` prints µs of processor time an answer, of all threads of each process. Front and owner
are processes of their own, without Kafka: what the owner holds was folded before. With ``--against DIR``, a checkout of
another commit, the two run in turn. The table shows the least of the rounds: other load only adds, by cold caches.
Threats to validity: one partition, one front, a loop that is always busy, all blocks in RocksDB's cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import quote

import uvloop

from benchmarks.child import quiet
from benchmarks.load import HttpLoadConnection, LoadConnection, Tally, as_fast_as_possible
from benchmarks.materialize import as_in_production
from benchmarks.workload import TABLE, describe_table, each_key_once, gtid
from consumers.owner.overlay import Overlay
from consumers.owner.partitions import Ownership, Partition
from consumers.owner.server import OwnerServer
from consumers.store.store import PartitionStore
from serving.http.front import make_front
from serving.http.server import make_server
from serving.reads.owners import Located
from serving.reads.spaces import RowSpace, TableSpace
from stream.kafka.topics import Topic
from stream.wire.batch import BatchLimits, Framer
from stream.wire.events import BindName, Change, ObjectImage, ObjectSet, SourceTransaction, TableImage, Topology
from stream.wire.keys import Layout
from tokens import Position, Vector

ROOT: Final = Path(__file__).resolve().parent.parent
ROWS, TABLES, PARTITIONS, COLUMNS = 20_000, 400, 10, 20
CONNECTIONS: Final = 8
SECONDS, WARM_UP_S = 1.0, 0.3
CATALOG, SHOP = "hive", "shop"
LIST: Final = "tpcds.{0}:120:117:117,119:101,105"
EVENT: Final = "HiveEvent/{0}"


def _fill(store: PartitionStore, shard: str, start: str, transactions: Iterator[SourceTransaction]) -> None:
    framer = Framer(shard, Layout(1), None, BatchLimits(rows_max=500, bytes_max=256 << 10, batch_bytes=64 << 20))
    framer.announce(Topology((shard,)))
    framer.start_epoch(start, 1, "first_start")
    for each in transactions:
        framer.add(each, 0, framer.room(each))
    for offset, (_, value) in enumerate(framer.take().records):
        store.fold([(offset, value)])
    store.commit()


def _rows() -> Iterator[SourceTransaction]:
    yield describe_table()
    yield from each_key_once(ROWS)


def _tables() -> Iterator[SourceTransaction]:
    for number in range(1, TABLES + 1):
        at = EVENT.format(number)
        yield SourceTransaction(at, at, 1, _objects_of(number, at))


def _objects_of(number: int, at: str) -> list[Change]:
    name = f"t{number:05}"
    keys = '"partitionKeys":[{"name":"ds","type":"string"}]'
    image = f'{{"tableName":"{name}","dbName":"tpcds","sd":{{"cols":{json.dumps(_columns())}}},{keys},"writeId":100}}'
    place: dict[str, Any] = {"lo": at, "hi": at}
    content: dict[str, Any] = {"image": image.encode(), "struct": image.encode(), "write_ids": LIST.format(name)}
    found: list[Change] = [BindName(f"tpcds.{name}", number)]
    found.append(TableImage(number, f"tpcds.{name}", "transactional", "created"))
    found.append(TableImage(number, f"tpcds.{name}", "transactional", "image", **content, **place))
    for kind in ("partition", "partition_statistics", "statistics", "constraints"):
        members = [(f"d{each:03}",) for each in range(PARTITIONS)] if kind.startswith("partition") else [()]
        found.append(ObjectSet(kind, number, "begun", lo=at))
        for values in members:
            shown = json.dumps({"values": values, "sd": {"cols": _columns()}}, separators=(",", ":")).encode()
            found.append(ObjectImage(kind, number, values, "image", shown, shown, **place))
        found.append(ObjectSet(kind, number, "complete", lo=at))
    return found


def _columns() -> list[dict[str, str]]:
    return [{"name": f"c{each}", "type": "string", "comment": ""} for each in range(COLUMNS)]


def serve_owner(directory: str) -> None:
    """Folds everything, then answers; prints its address. Runs in a child process, until its input ends."""
    as_in_production()
    ownership = Ownership(Path(directory))
    kinds = ((SHOP, "shop/0", gtid(0), _rows()), (CATALOG, "hive/0", EVENT.format(0), _tables()))
    for keyspace, shard, start, transactions in kinds:
        topic = Topic(f"freshet.{keyspace}.events", keyspace, 1)
        path = Path(directory) / keyspace
        store = PartitionStore.open(path, keyspace=keyspace, partition=0, topic_id=topic.topic_id)
        _fill(store, shard, start, transactions)
        ownership.add(Partition(keyspace, 0, topic, store, Overlay(1 << 20), ready=True))

    async def run() -> None:
        host, port = await OwnerServer(ownership, _no_checkpoints).start()
        print(f"{host}:{port}", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        os._exit(0)

    uvloop.run(run())


def serve_front(owner: str) -> None:
    """A front over this owner; prints its port. Runs in a child process, until its input ends."""
    as_in_production()
    located = Located(owner)
    spaces: list[RowSpace | TableSpace] = [RowSpace(SHOP, Layout(1), "bench"), TableSpace(CATALOG, Layout(1))]
    server = make_server(make_front(spaces, lambda *_: located), "127.0.0.1", 0)

    async def run() -> None:
        serving = asyncio.ensure_future(server.serve())
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.01)
        print(server.address[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving
        os._exit(0)

    uvloop.run(run())


async def _no_checkpoints(_: list[Partition]) -> list[Any]:
    return []


def _requests() -> dict[str, Callable[[int], str]]:
    """What is asked → the path of the n-th request for it."""
    row = str(Vector({"shop/0": (1, Position.parse(gtid(ROWS)))}))
    token = str(Vector({"hive/0": (1, Position.parse(EVENT.format(TABLES)))}))

    def of_table(kind: str, more: str = "") -> Callable[[int], str]:
        def path(number: int) -> str:
            table = number % TABLES + 1
            name = f"t{table:05}"
            listed = quote(LIST.format(name))
            where = f"/v1/{kind}/tpcds/{name}" if kind != "partitions" else f"/v1/tables/tpcds/{name}/partitions"
            return f"{where}?valid_write_ids={listed}&table_id={table}&token={token}{more}"

        return path

    return {
        "row": lambda number: f"/v1/rows/{SHOP}/{TABLE}/{number % ROWS}?token={row}",
        "table": of_table("tables"),
        "constraints": of_table("constraints"),
        "statistics": of_table("statistics"),
        "one partition": of_table("partitions", "&names=" + quote('[["d003"]]')),
        "all partitions": of_table("partitions"),
        "filter": of_table("partitions", "&filter=" + quote("ds >= 'd004'")),
    }


def measure() -> dict[str, float]:
    """µs of processor time an answer, by what is asked and process."""
    found: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory,
        _child("--owner", directory) as owner,
        _child("--front", owner.greeting) as front,
    ):
        for name, path in _requests().items():
            _load(int(front.greeting), path, WARM_UP_S)
            before = front.processor_ns(), owner.processor_ns()
            answers = _load(int(front.greeting), path, SECONDS)
            found[f"{name}: front"] = (front.processor_ns() - before[0]) / answers / 1000
            found[f"{name}: owner"] = (owner.processor_ns() - before[1]) / answers / 1000
    return found


def _load(port: int, path: Callable[[int], str], seconds: float) -> int:
    """Answers to reads that follow one another on some connections."""

    def request(number: int) -> bytes:
        return f"GET {path(number)} HTTP/1.1\r\nHost: h\r\n\r\n".encode()

    async def run() -> int:
        tally, loop = Tally(), asyncio.get_running_loop()
        made: list[LoadConnection] = []
        for _ in range(CONNECTIONS):
            _, made_one = await loop.create_connection(
                lambda: HttpLoadConnection(request, tally.done), "127.0.0.1", port
            )
            made.append(made_one)
        wanted = [Random(3).randrange(ROWS) for _ in range(1_000)]
        await as_fast_as_possible(made, tally, wanted, seconds)
        if tally.not_fresh:
            raise AssertionError(f"{tally.not_fresh} of {tally.answered} answers were not fresh from the cache")
        return tally.answered

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


class _Child:
    """A process of this module, and the first line that it printed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.greeting = process.stdout.readline().strip()

    def processor_ns(self) -> int:
        """Of all its threads that live."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


@contextmanager
def _child(*arguments: str) -> Iterator[_Child]:
    line = [sys.executable, __file__, *arguments]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield _Child(process)
    finally:
        process.kill()
        process.wait()


def _in_child(root: Path) -> dict[str, float]:
    """`measure` with the code in ``root``."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, __file__, "--one"], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="a checkout of another commit: it is measured in turn")
    parser.add_argument("--rounds", type=int, default=3)
    for hidden in ("--owner", "--front"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    quiet()
    if given.owner:
        serve_owner(given.owner)
    elif given.front:
        serve_front(given.front)
    elif given.one:
        print(json.dumps(measure()))
    else:
        _compare({"before": given.against.resolve(), "after": ROOT} if given.against else {"now": ROOT}, given.rounds)


def _compare(roots: dict[str, Path], count: int) -> None:
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in roots}
    for _ in range(count):
        for name, root in roots.items():
            rounds[name].append(_in_child(root))
    for what in rounds[next(iter(roots))][0]:
        least = {name: min(one[what] for one in found) for name, found in rounds.items()}
        print(f"{what:24}", "  ".join(f"{name} {spent:6.1f}" for name, spent in least.items()), flush=True)


if __name__ == "__main__":
    main()
