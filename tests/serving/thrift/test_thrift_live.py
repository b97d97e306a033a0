"""The Thrift front beside a real metastore: engines get the bytes that the metastore gives, and never older ones."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from freshet.local.hive.home import classpath, metastore_home
from freshet.local.java import find_java
from freshet.local.process import free_ports
from serving.thrift.messages import head_of
from stream.kafka.connection import KafkaCluster
from stream.sources.hive.live.metastore import client_capabilities
from stream.sources.hive.rpc.thrift import field, integer, long, message, record, text, texts
from stream.sources.hive.structs import I16, Struct
from tests.servers.hive_catalog import HiveCatalog
from tests.serving.stack import ServingStack, eventually
from tests.serving.thrift.engines import PROCESSOR, Engine, result_of

ENGINE = Path(__file__).with_name("Engine.java")


class Installation(NamedTuple):
    stack: ServingStack
    catalog: HiveCatalog
    """Past the front."""
    front: tuple[str, int]
    url: str


@pytest.fixture(scope="module")
def installation(
    kafka: KafkaCluster, hive: tuple[str, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    suffix = uuid.uuid4().hex[:10]
    uris = {"uris": [f"thrift://{hive[0]}:{hive[1]}"], "catalog": "hive", "poll_interval_ms": 20}
    with ExitStack() as opened:
        catalog = opened.enter_context(HiveCatalog(hive, f"d{suffix}"))
        directory = tmp_path_factory.mktemp("thrift")
        stack = ServingStack(directory, kafka, None, f"hive{suffix}", "", kind="hive", source=uris)
        opened.enter_context(stack)
        port, of_http = free_ports(2)
        listener = {stack.keyspace: {"port": port, "max_wait_ms": 5000}}
        opened.enter_context(stack.add_front({"port": of_http, "thrift": listener}))
        yield Installation(stack, catalog, ("127.0.0.1", port), f"http://127.0.0.1:{of_http}")


@pytest.fixture
def engine(installation: Installation) -> Iterator[Engine]:
    with Engine(installation.front) as opened:
        yield opened


@pytest.fixture
def direct(installation: Installation) -> Iterator[Engine]:
    with Engine(installation.catalog.address) as opened:
        yield opened


def answered(installation: Installation, call: str) -> float:
    """How many such calls the cache has answered."""
    text = httpx2.get(f"{installation.url}/metrics", timeout=10).text
    wanted = f'call="{call}",catalog="{installation.stack.keyspace}",served_from="cache"'
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if wanted in line)


def from_cache(installation: Installation, call: str, ask: Callable[[], bytes]) -> bytes:
    """The first reply that the cache gives."""

    def look() -> list[bytes]:
        before = answered(installation, call)
        reply = ask()
        return [reply] if answered(installation, call) > before else []

    [found] = eventually(look, what=f"{call} from the cache")
    return found


def request(catalog: HiveCatalog, table: str, *processor: str, listed: str = "", table_id: int = -1) -> Struct:
    """Of ``get_table_req``, as an engine writes it."""
    found: Struct = {1: text(catalog.db), 2: text(table), 3: client_capabilities(), 4: text("hive")}
    if listed:
        found[6] = text(listed)
    if processor:
        found |= {8: texts(processor), 9: text("HiveServer2#test")}
    found |= {10: text("hive"), 11: long(table_id)}
    return {1: record(found)}


@pytest.mark.parametrize("processor", [(), PROCESSOR, ("EXTREAD",)], ids=["plain", "hive", "reader"])
@pytest.mark.parametrize("transactional", [False, True], ids=["external", "managed"])
def test_a_table_is_answered_as_the_metastore_answers(
    installation: Installation, engine: Engine, direct: Engine, processor: tuple[str, ...], transactional: bool
) -> None:
    """Byte for byte, for each kind of reader: also ``accessType``, and whether the statistics hold for its list."""
    catalog = installation.catalog
    name = f"t{uuid.uuid4().hex[:8]}"
    catalog.create(name, transactional=transactional, v="1", COLUMN_STATS_ACCURATE='{"BASIC_STATS":"true"}')
    listed = ""
    if transactional:
        catalog.write(name, v="2")
        listed = catalog.valid_write_ids(name)
    asked = request(catalog, name, *processor, listed=listed)
    reply = from_cache(installation, "get_table_req", lambda: engine.call("get_table_req", asked, 7))
    assert reply == direct.call("get_table_req", asked, 7)
    assert result_of(reply) is not None


def test_no_answer_is_older_than_the_call(installation: Installation, engine: Engine) -> None:
    """Each change at the metastore, by somebody else, is in the next answer, and the cache answers again soon."""
    catalog = installation.catalog
    name = f"t{uuid.uuid4().hex[:8]}"
    catalog.create(name, transactional=False, v="0")
    version = ""
    asked = request(catalog, name, *PROCESSOR)

    def shown() -> bytes:
        reply = engine.call("get_table_req", asked)
        assert field(field(result_of(reply), 1), 9)["v"] == version
        return reply

    for version in map(str, range(1, 20)):
        catalog.alter(name, v=version)
        from_cache(installation, "get_table_req", shown)


def test_partitions_and_their_names(installation: Installation, engine: Engine, direct: Engine) -> None:
    catalog = installation.catalog
    name = f"t{uuid.uuid4().hex[:8]}"
    catalog.create(name, transactional=False, partitioned=True)
    catalog.add_partitions(name, "2024-01-02", "2024-01-01", "a=b/c")
    catalog.add_primary_key(name, f"pk_{name}")
    of: Struct = {1: text(catalog.db), 2: text(name)}
    calls: dict[str, Struct] = {
        "get_partition_names": {**of, 3: (I16, -1)},
        "get_partition_names_ps": {**of, 3: texts(["2024-01-02"]), 4: (I16, -1)},
        "get_partitions_by_names": {**of, 3: texts(["p=2024-01-02", "p=2024-01-01", "p=none"])},
        "get_partitions_by_names_req": {
            1: record({**of, 3: texts(["p=a%3Db%2Fc"]), 5: texts(PROCESSOR), 10: long(-1)})
        },
    }
    for call, asked in calls.items():
        reply = from_cache(installation, call, lambda call=call, asked=asked: engine.call(call, asked, 3))  # type: ignore[misc]
        assert reply == direct.call(call, asked, 3), call
    for day in range(10, 20):
        catalog.add_partitions(name, f"2024-02-{day}")
        found = field({1: (15, result_of(engine.call("get_partition_names", calls["get_partition_names"])))}, 1)
        assert f"p=2024-02-{day}" in found
        catalog.drop_partition(name, f"2024-02-{day}")
        assert len(result_of(engine.call("get_partition_names", calls["get_partition_names"])).values) == 3


def test_what_the_front_does_not_know_is_the_metastores(
    installation: Installation, engine: Engine, direct: Engine
) -> None:
    """Unknown calls, missing tables and odd requests get the metastore's own bytes, errors too."""
    catalog = installation.catalog
    of: Struct = {1: text(catalog.db), 2: text("missing")}
    calls: list[tuple[str, Struct]] = [
        ("set_ugi", {1: text("me"), 2: texts([])}),
        ("get_all_databases", {}),
        ("get_table", of),
        ("get_table_req", request(catalog, "missing")),
        ("get_partition_names", {**of, 3: (I16, -1)}),
        ("no_such_call", {1: integer(1)}),
        ("getVersion", {}),
    ]
    for call, asked in calls:
        assert engine.call(call, asked, 5) == direct.call(call, asked, 5), call


def test_calls_that_come_at_once_are_answered_in_order(engine: Engine) -> None:
    engine.send(b"".join(message("getVersion", each, {}) for each in (1, 2, 3)))
    seen = b""
    while seen.count(b"getVersion") < 3:
        seen += engine._socket.recv(1 << 16)
    head = head_of(seen)
    assert head is not None
    assert head.sequence == 1


def test_hives_own_client(installation: Installation, tmp_path: Path) -> None:
    """It reads through the front what it reads at the metastore, and sees what it has just written."""
    catalog = installation.catalog
    name = f"t{uuid.uuid4().hex[:8]}"
    catalog.create(name, transactional=False, partitioned=True)
    catalog.add_partitions(name, "1", "2", "3")
    said = {}
    for place, (host, port) in {"front": installation.front, "metastore": catalog.address}.items():
        program = [find_java().path, "-cp", classpath(metastore_home(), tmp_path), str(ENGINE)]
        ran = subprocess.run(
            [*program, f"thrift://{host}:{port}", catalog.db, name, "41"],
            capture_output=True,
            check=False,
            timeout=240,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        said[place] = ran.stdout.splitlines()
    wrote = [line for line in said["front"] if line.startswith("wrote")]
    assert wrote == [f"wrote {each} {each}" for each in (9, 19, 29, 39)]
    read = [[line for line in lines if line.startswith("read")] for lines in said.values()]
    assert read[0][-1] == read[1][0], "nothing was written in between"
    assert answered(installation, "get_partitions_req") > 0
