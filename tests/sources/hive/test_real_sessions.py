"""Random sessions of a real metastore: its log, replayed, gives the lists and ids that the metastore itself answers."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

import pytest

from consumers.process.replay import Replay
from stream.sources.hive.messages import TableObject
from stream.sources.hive.rpc.connection import MetastoreError
from stream.sources.hive.rpc.thrift import field, integer, long, record, text, texts
from stream.sources.hive.structs import BOOL, I64, LIST, ListValue, Struct
from tests.servers.hive_catalog import HiveCatalog, mapping

STEPS = 40
TABLES = ("a", "b", "c")


class Engines:
    """What engines do at random, to few tables in two databases, with overlapping transactions."""

    def __init__(self, address: tuple[str, int], seed: int) -> None:
        self.rng = random.Random(seed)
        self.catalogs = [HiveCatalog(address, f"db{uuid.uuid4().hex[:8]}") for _ in range(2)]
        self.metastore = self.catalogs[0].metastore
        self.open: list[int] = []
        self.known: dict[str, tuple[int, str | None]] = {}
        """What was answered last."""

    def close(self) -> None:
        """Close the connections."""
        for each in self.catalogs:
            each.__exit__(None, None, None)

    @property
    def names(self) -> list[str]:
        """All that a table may have."""
        return [f"{catalog.db}.{table}" for catalog in self.catalogs for table in TABLES]

    def act(self) -> str:
        """One call that may fail; what it was."""
        catalog, table = self.rng.choice(self.catalogs), self.rng.choice(TABLES)
        acts: list[tuple[float, Callable[[HiveCatalog, str], object]]] = [(0.15, self.begin), (0.2, self.allocate)]
        acts += [(0.25, self.end)] if self.open else []
        table_acts = [(0.1, self.alter), (0.1, self.drop), (0.1, self.rename), (0.05, self.convert), (0.05, self.write)]
        acts += table_acts if f"{catalog.db}.{table}" in self.known else [(0.25, self.create)]
        weights, calls = zip(*acts, strict=True)
        [act] = self.rng.choices(calls, weights)
        try:
            return f"{act.__name__} {table}: {act(catalog, table)}"
        except MetastoreError as error:
            return f"{act.__name__} {table} failed: {error}"

    def begin(self, catalog: HiveCatalog, _: str) -> None:
        """Open some transactions with one call."""
        request: Struct = {1: integer(self.rng.randint(1, 3)), 2: text("tester"), 3: text("host")}
        self.open += field(catalog.calls.call("open_txns", {1: record(request)}), 1)

    def allocate(self, catalog: HiveCatalog, table: str) -> None:
        """Give write ids to some of them, whether there is a table or not; or another id to one of them."""
        txns = self.rng.sample(self.open, min(len(self.open), self.rng.randint(1, 3)))
        again = self.rng.random() < 0.2
        request: Struct = {1: text(catalog.db), 2: text(table), 6: (BOOL, again)}
        request[3] = (LIST, ListValue(I64, txns[:1] if again else txns))
        catalog.calls.call("allocate_table_write_ids", {1: record(request)})

    def end(self, catalog: HiveCatalog, _: str) -> None:
        """Commit or abort one."""
        txn = self.open.pop(self.rng.randrange(len(self.open)))
        (catalog.commit if self.rng.random() < 0.65 else catalog.abort)(txn)

    def create(self, catalog: HiveCatalog, table: str) -> None:
        """Of any kind."""
        kind = self.rng.choice(["full", "insert_only", "external"])
        parameters = {"transactional_properties": "insert_only"} if kind == "insert_only" else {}
        catalog.create(table, transactional=kind != "external", partitioned=False, **parameters)

    def alter(self, catalog: HiveCatalog, table: str) -> None:
        """Outside of any transaction."""
        catalog.alter(table, v=str(self.rng.random()))

    def write(self, catalog: HiveCatalog, table: str) -> None:
        """Inside a transaction that ends at once."""
        catalog.write(table, v=str(self.rng.random()))

    def drop(self, catalog: HiveCatalog, table: str) -> None:
        """With its data, and so with its write ids."""
        catalog.drop(table)

    def rename(self, catalog: HiveCatalog, table: str) -> None:
        """Maybe into the other database, maybe to a name that is taken."""
        struct, to = catalog.struct(table), self.rng.choice(self.catalogs)
        self._store(catalog, table, {**struct, 1: text(self.rng.choice(TABLES)), 2: text(to.db)})

    def convert(self, catalog: HiveCatalog, table: str) -> None:
        """To a full ACID table."""
        struct = catalog.struct(table)
        parameters = {key: value for key, value in field(struct, 9).items() if key != "EXTERNAL"}
        struct |= {9: mapping({**parameters, "transactional": "true"}), 12: text("MANAGED_TABLE")}
        self._store(catalog, table, struct)

    def _store(self, catalog: HiveCatalog, table: str, struct: Struct) -> None:
        place = {1: text("hive"), 2: text(catalog.db), 3: text(table), 4: record({**struct, 19: long(-1)})}
        catalog.calls.call("alter_table_req", {1: record(place)})

    def answers(self) -> dict[str, tuple[int, str | None]]:
        """Table → its id and, if it is transactional, its list, as a reader is told who begins now."""
        tables = {
            name: each for name, each in self.metastore.tables(self.names).items() if isinstance(each, TableObject)
        }
        managed = [name for name, table in tables.items() if table.transactional]
        lists = self._lists(managed) if managed else {}
        self.known = {name: (table.table_id, lists.get(name)) for name, table in tables.items()}
        return self.known

    def _lists(self, names: list[str]) -> dict[str, str]:
        """With the server's own ``minOpenWriteId``, as Hive writes them."""
        answer = self.catalogs[0].calls.call("get_valid_write_ids", {1: record({1: texts(names)})})
        lists = {}
        for each in field(answer, 1):
            bits = field(each, 5, "").encode("utf-8", "surrogateescape")
            ids: tuple[list[int], list[int]] = ([], [])
            for at, write_id in enumerate(field(each, 3, [])):
                ids[at // 8 < len(bits) and bits[at // 8] >> at % 8 & 1].append(write_id)
            opened, aborted = (",".join(map(str, some)) for some in ids)
            name = field(each, 1)
            lists[name] = f"{name}:{field(each, 2)}:{field(each, 4, 2**63 - 1)}:{opened}:{aborted}"
        return lists


@pytest.mark.parametrize("seed", [4])
def test_the_log_tells_what_the_metastore_answers(hive: tuple[str, int], seed: int) -> None:
    """After each call: renames amid writers, ids before a table, reallocation, conversions, drops, failed calls."""
    engines, folded, acts, judged = Engines(hive, seed), Replay(), [], 0
    try:
        at = engines.metastore.last_event()
        for _ in range(STEPS):
            acts.append(engines.act())
            for row in engines.metastore.events(at, 500):
                folded.feed(row)
                at = row["eventId"]
            shown = {name: (each.table_id, each.write_ids) for name, each in folded.tables().items()}
            answers = engines.answers()
            assert {name: shown.get(name) for name in answers} == answers, acts[-20:]
            assert not (shown.keys() - answers.keys()) & {*engines.names}, acts[-20:]
            judged += sum(listed is not None for _, listed in answers.values())
    finally:
        engines.close()
    assert judged > STEPS
    assert not folded.rejections
