"""What one answer costs front and owner, without sockets: of tables, partitions, statistics, constraints, rows.

``python -m benchmarks.answers`` prints µs of processor time of the answering thread: in the owner from the bytes of a
request to the bytes of its answer, in the front from the bytes of an HTTP request to those of its response, with an
owner that has answered already. For a row the front asks one that answers at once: packing that answer counts too. With
``--against DIR``, a checkout of another commit, the two run in turn. The table shows the least of all passes: other
load only adds. Threats to validity: no system calls and no waking of threads, one partition, one connection, all blocks
in RocksDB's cache; collections of garbage are as in production.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import process_time
from typing import Any, Final
from unittest.mock import patch
from urllib.parse import quote

import uvloop
from uvicorn.server import ServerState

from benchmarks import child
from benchmarks.materialize import as_in_production
from benchmarks.workload import START_POSITION, START_SECONDS, TABLE, gtid, image
from consumers.fold.shards import Kin
from consumers.owner.client import OwnerClient, _Connection
from consumers.owner.connection import FrontConnection
from consumers.owner.framing import PREFIX_BYTES, decode_request, encode_frame
from consumers.owner.overlay import Overlay
from consumers.owner.partitions import Ownership, Partition
from consumers.owner.protocol import (
    Answer,
    Description,
    Get,
    GetObjects,
    GetRange,
    GetTable,
    Hello,
    OwnerRow,
    RangeRows,
    Request,
    Rows,
    SchemaColumn,
)
from consumers.owner.server import OwnerServer
from consumers.store.index import Index
from consumers.store.store import PartitionStore
from serving.http.connection import BoundedConnection
from serving.http.front import make_front
from serving.http.server import make_server
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace, TableSpace
from stream.kafka.topics import Topic
from stream.wire.batch import BatchLimits, Framer
from stream.wire.events import BindName, Change, ObjectImage, ObjectSet, SourceTransaction, TableImage, Topology
from stream.wire.keys import Layout, row_key
from tokens import Position, Vector

TABLES, PARTITIONS, COLUMNS = 400, 10, 20
ASKED, PASSES = 400, 12
ASKED_PARTITIONS: Final = 4
"""Of the table of rows."""
CATALOG: Final = "hive"
LIST: Final = "tpcds.{0}:120:117:117,119:101,105"
EVENT: Final = "HiveEvent/{0}"
FRESH: Final = b'"served_from":"cache","freshness":"fresh"'
TOKEN: Final = str(Vector({"hive/0": (1, Position.parse(EVENT.format(TABLES)))}))
KINDS: Final[dict[str, tuple[str, list[str], str]]] = {
    "table": ("", [], "tables/tpcds/{0}?"),
    "constraints": ("constraints", ["[]"], "constraints/tpcds/{0}?"),
    "statistics": ("statistics", ["[]"], "statistics/tpcds/{0}?"),
    "one partition": ("partition", ['["d003"]'], "tables/tpcds/{0}/partitions?names=%5B%5B%22d003%22%5D%5D&"),
    "all partitions": ("partition", [], "tables/tpcds/{0}/partitions?"),
}
"""What is asked → its kind and names at the owner, and the path at the front."""


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


class _Sink:
    """A transport that counts what a connection writes, and keeps the last of it."""

    def __init__(self) -> None:
        self.writes = 0
        self.last = b""

    def write(self, data: bytes) -> None:
        self.writes += 1
        self.last = data

    def get_extra_info(self, *_: object) -> None: ...
    def set_write_buffer_limits(self, **_: int) -> None: ...
    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_protocol(self, _: object) -> None: ...
    def close(self) -> None: ...


async def _least(receive: Callable[[bytes], None], sink: _Sink, requests: list[bytes], proof: bytes) -> float:
    """µs an answer, of the fastest pass. Each answer has the ``proof`` in it."""
    passes = []
    for _ in range(PASSES):
        began = process_time()
        for request in requests:
            before = sink.writes
            receive(request)
            while sink.writes == before:  # noqa: ASYNC110 - the time until the answer counts
                await asyncio.sleep(0)
            if proof not in sink.last:
                raise AssertionError(f"not fresh from the cache: {sink.last[:500]!r}")
        passes.append(process_time() - began)
    return 1e6 * min(passes) / len(requests)


def _request(what: str, number: int, topic: str) -> Request:
    kind, names, _ = KINDS[what]
    table, name = number, f"tpcds.t{number:05}"
    listed = LIST.format(f"t{number:05}")
    if not kind:
        return GetTable(1, CATALOG, name, listed, table, TOKEN, 1_000, topic)
    return GetObjects(1, CATALOG, kind, name, table, listed, TOKEN, names, max_wait_ms=1_000, topic_id=topic)


async def _owner(directory: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """µs by what is asked; and an answer of each, for the front."""
    topic = Topic("freshet.hive.events", CATALOG, 1)
    store = PartitionStore.open(directory, keyspace=CATALOG, partition=0, topic_id=topic.topic_id)
    framer = Framer("hive/0", Layout(1), None, BatchLimits(rows_max=500, bytes_max=256 << 10, batch_bytes=64 << 20))
    framer.announce(Topology(("hive/0",)))
    framer.start_epoch(EVENT.format(0), 1, "first_start")
    for each in _tables():
        framer.add(each, 0, framer.room(each))
    store.fold([*enumerate(value for _, value in framer.take().records)])
    store.commit()
    ownership = Ownership(directory)
    ownership.add(Partition(CATALOG, 0, topic, store, Overlay(1 << 20), ready=True))
    server, sink = OwnerServer(ownership, _no_checkpoints), _Sink()
    connection = FrontConnection(server)
    connection.connection_made(sink)  # type: ignore[arg-type]
    connection.data_received(encode_frame(Hello(0)))
    found, answers = {}, {}
    numbers = Random(3).choices(range(1, TABLES + 1), k=ASKED)
    for what in KINDS:
        frames = [encode_frame(_request(what, number, topic.topic_id)) for number in numbers]
        found[f"{what}: owner"] = await _least(connection.data_received, sink, frames, b"the entry contains")
        answer = server.answer(_request(what, 1, topic.topic_id))
        answers[what] = await answer if asyncio.iscoroutine(answer) else answer
    store.close(commit=False)
    return found, answers


def _connected(space: TableSpace | RowSpace) -> tuple[BoundedConnection, _Sink]:
    """A connection to a front of ``space``."""
    locations = Locations(fixed={(space.name, each): "127.0.0.1:1" for each in range(space.layout.partitions)})
    config = make_server(make_front([space], locations), "127.0.0.1", 0).config
    config.load()
    connection, sink = BoundedConnection(config=config, server_state=ServerState(), app_state={}), _Sink()
    connection.connection_made(sink)
    return connection, sink


async def _front(answers: dict[str, Any]) -> dict[str, float]:
    """µs by what is asked, with an owner that gives ``answers``."""
    connection, sink = _connected(TableSpace(CATALOG, Layout(1)))
    found = {}
    for what, (_, _, path) in KINDS.items():

        async def answer(*_: object, what: str = what) -> Any:
            return answers[what]

        listed = quote(LIST.format("t00001"))
        target = f"/v1/{path.format('t00001')}valid_write_ids={listed}&table_id=1&token={TOKEN}"
        request = f"GET {target} HTTP/1.1\r\nHost: front\r\n\r\n".encode()
        with patch.object(OwnerClient, "get_table", answer), patch.object(OwnerClient, "get_objects", answer):
            found[f"{what}: front"] = await _least(connection.data_received, sink, [request] * ASKED, FRESH)
    return found


class _Owner:
    """The transport of a front's connection to an owner that has one row, which it gives at once."""

    def __init__(self) -> None:
        self.connection = _Connection()
        self.connection.connection_made(self)  # type: ignore[arg-type]

    def write(self, frame: bytes) -> None:
        answer = encode_frame(_row_of(decode_request(frame[PREFIX_BYTES:])))
        asyncio.get_running_loop().call_soon(self.connection.data_received, answer)


def _row_of(asked: Request) -> Answer:
    at, why = gtid(7), "the entry contains the session's position"
    if isinstance(asked, Get):
        place = "bench/0", 1, at, at, START_SECONDS, gtid(9), START_POSITION, b""
        return Rows(asked.id, [OwnerRow(1, image(7, 7, 40), "fresh", why, True, False, *place)])
    assert isinstance(asked, GetRange)
    rows = [(row_key(TABLE, [7]), image(7, 7, 40))] if not asked.partition else []
    keys, images = [key for key, _ in rows], [image for _, image in rows]
    kin = Kin(frozenset(("bench/0",)))
    return RangeRows(
        asked.id, keys, images, len(rows), False, "fresh", why, True, False, "bench/0", 1, at, gtid(9), kin=kin
    )


async def _row() -> dict[str, float]:
    """µs of one row in the front: by its key, and by an indexed column, for which it asks each of some partitions."""
    space = RowSpace("bench", Layout(ASKED_PARTITIONS), indexes=[Index(TABLE, ("version",))])
    connection, sink = _connected(space)

    async def describe(*_: object) -> Description:
        columns = [SchemaColumn("id", "int", True, ""), SchemaColumn("version", "int", True, "")]
        return Description(0, True, str(space.layout), TABLE, columns, ["id"], True)

    async def connect(client: OwnerClient) -> _Connection:
        client._connection = _Owner().connection
        return client._connection

    token, found = quote(str(Vector({"bench/0": (1, Position.parse(gtid(5)))}))), {}
    with patch.object(OwnerClient, "describe", describe), patch.object(OwnerClient, "_connect", connect):
        for what, path in (("row", f"{TABLE}/7?"), ("row by an index", f"{TABLE}?version=7&limit=2&")):
            request = f"GET /v1/rows/bench/{path}token={token} HTTP/1.1\r\nHost: front\r\n\r\n".encode()
            found[f"{what}: front"] = await _least(connection.data_received, sink, [request] * ASKED, FRESH)
    return found


def measure() -> dict[str, float]:
    """µs of an answer, by what is asked, in owner and front."""
    as_in_production()

    async def run(directory: Path) -> dict[str, float]:
        found, answers = await _owner(directory)
        return found | await _front(answers) | await _row()

    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        return uvloop.run(run(Path(directory)))


async def _no_checkpoints(_: list[Partition]) -> list[Any]:
    return []


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="a checkout of another commit: it is measured in turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    child.quiet()
    if given.one:
        print(json.dumps(measure()))
        return
    rounds = child.in_turn(__file__, given.against, given.rounds)
    for what in next(iter(rounds.values()))[0]:
        least = {name: min(one[what] for one in found) for name, found in rounds.items()}
        print(f"{what:24}", "  ".join(f"{name} {spent:6.1f}" for name, spent in least.items()), flush=True)


if __name__ == "__main__":
    main()
