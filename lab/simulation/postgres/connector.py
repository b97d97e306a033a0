"""A model of Debezium's connector for PostgreSQL: it writes what the log has of a server's commits, exactly once."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from lab.simulation.connectors.connect import BATCH_MAX, CONFIG, HEARTBEAT, PATIENCE_S, WITHOUT_ENDS, Place, Worker
from lab.simulation.connectors.judging import STEP
from lab.simulation.connectors.messages import Told
from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.producer import SimulatedProducer
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.postgres.server import Change, Commit, SimulatedPostgres
from lab.simulation.postgres.tables import Definition, Row
from stream.sources.debezium.connector import HEARTBEAT_QUERY
from stream.sources.debezium.values import UNAVAILABLE

POSTGRES_CONFIG: Final = CONFIG | {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "lsn.flush.mode": "connector",
    "heartbeat.interval.ms": "1000",
    "heartbeat.action.query": HEARTBEAT_QUERY,
    "table.include.list": "shop[.].*",
}
KEPT: Final = "name"
"""A column of long texts: where one is not changed, the log does not have it."""
_STRUCT: Final = {"type": "struct"}


class PostgresWorker(Worker):
    """Kafka Connect's worker with this connector."""

    def __init__(
        self, kernel: Kernel, kafka: Cluster, server: SimulatedPostgres, partitions: int, *, tells_ends: bool
    ) -> None:
        super().__init__(kernel, kafka, server, partitions, tells_ends=tells_ends)  # type: ignore[arg-type]
        self._postgres = server
        self.as_it_should_be = POSTGRES_CONFIG if tells_ends else POSTGRES_CONFIG | WITHOUT_ENDS
        self.config = dict(self.as_it_should_be)

    def _run_task(self) -> None:
        out = SimulatedProducer(self._kafka, {"transactional.id": "connect-shop"})
        out.init_transactions(PATIENCE_S)
        self._await_server()
        server, place = self._postgres, self._kept()
        if self.begins_anew or not place.snapshot:
            place = self._begin_anew(out)
        told, left = place.commits, deque[tuple[Told, Place]]()
        skip = place.rows
        while True:
            while len(left) < BATCH_MAX and told < len(server.history):
                messages = self._messages(server.history[told])[skip:]
                for at, message in enumerate(messages, skip + 1):
                    is_last = at == skip + len(messages)
                    behind = Place(told + 1, 0, place.snapshot) if is_last else Place(told, at, place.snapshot)
                    left.append((message, behind))
                told, skip = told + 1, 0
            if left:
                some = [left.popleft() for _ in range(min(len(left), 1 + self._below(BATCH_MAX)))]
                self._write(out, some)
                server.confirmed = max(server.confirmed, some[-1][1].commits)
            else:  # what the heartbeat's query commits is no row, and is not modelled: it is told and confirmed at once
                server.confirmed = max(server.confirmed, told)
                self._kernel.wait(lambda: len(server.history) > told)  # noqa: B023
            self._await_server()

    def _begin_anew(self, out: SimulatedProducer) -> Place:
        server = self._postgres
        server.has_slot, snapshot = True, server.snapshot()
        end = min((*snapshot.invisible, snapshot.end + 1)) - 1
        server.confirmed = end
        place = Place(end, 0, str(end * STEP))
        found = [(name, server.definition(name, snapshot)) for name in sorted(server.catalog)]
        told = [
            _row(Commit(end, 0, 0.0, (), ()), server, Change(definition, None, row), "r", None)
            for name, definition in found
            for row in (snapshot.of(versions) for versions in server.rows[name].values())
            if definition is not None and row is not None
        ]
        begin = _boundary("BEGIN", f"0:{end * STEP}", server, None)
        told.append(begin if self._tells_ends else HEARTBEAT)  # also of an empty database it is kept
        self._write(out, [(message, place) for message in told])
        self.begins_anew = False
        return place

    def _messages(self, commit: Commit) -> list[Told]:
        """What the connector tells of a commit; nothing of one that changes no row by the log."""
        server, steps = self._postgres, _steps(commit)
        if not self._tells_ends:
            return [_row(commit, server, change, operation, None) for change, operation in steps]
        if not steps:
            return []
        place = f"{commit.xid}:{commit.number * STEP}"
        rows = [
            _row(commit, server, change, operation, {"id": place, "total_order": at, "data_collection_order": at})
            for at, (change, operation) in enumerate(steps, 1)
        ]
        counts = Counter(change.definition.name for change, _ in steps)
        return [_boundary("BEGIN", place, server, None), *rows, _boundary("END", place, server, counts)]


def _steps(commit: Commit) -> list[tuple[Change, str]]:
    """The rows of a commit, each with the word for what became of it."""
    steps: list[tuple[Change, str]] = [(Change(each, None, None), "t") for each in commit.emptied]
    for change in commit.changes:
        definition, before, after = change
        if before is not None and after is not None and definition.key_of(before) != definition.key_of(after):
            steps += [(Change(definition, before, None), "d"), (Change(definition, None, after), "c")]
        else:
            steps.append((change, "c" if before is None else "d" if after is None else "u"))
    return steps


def _boundary(status: str, place: str, server: SimulatedPostgres, counts: Counter[str] | None) -> Told:
    payload: dict[str, Any] = {"status": status, "id": place, "ts_ms": server.now_ms, "event_count": None}
    if counts is not None:
        tables = [{"data_collection": table, "event_count": count} for table, count in counts.items()]
        payload |= {"event_count": counts.total(), "data_collections": tables}
    return Told(".transaction", _wrapped(payload, _STRUCT))


def _row(
    commit: Commit, server: SimulatedPostgres, change: Change, operation: str, transaction: dict[str, Any] | None
) -> Told:
    definition, before, after = change
    last = _last_told(server, commit)
    source = {
        "connector": "postgresql",
        "ts_ms": server.now_ms,
        "snapshot": "true" if operation == "r" else "false",
        "db": "shop",
        "schema": "shop",
        "table": definition.table,
        "lsn": commit.number * STEP,
        "sequence": json.dumps([last, str(commit.number * STEP)]),
    }
    payload = {
        "op": operation,
        "source": source,
        "before": _before(definition, before, after),
        "after": _after(definition, before, after),
        "transaction": transaction,
    }
    fields = [kind.schema(name) for name, kind in definition.columns]
    schema = {"type": "struct", "fields": [{"type": "struct", "field": at, "fields": fields} for at in _IMAGES]}
    return Told(f".{definition.name}", _wrapped(payload, schema), is_row=operation != "r")


_IMAGES: Final = ("before", "after")


def _last_told(server: SimulatedPostgres, commit: Commit) -> str | None:
    """Where the commit ends that the connector has told before this one."""
    before: Iterator[Commit] = (
        each for each in reversed(server.history[: commit.number - 1]) if each.changes or each.emptied
    )
    return next((str(each.number * STEP) for each in before), None)


def _before(definition: Definition, before: Row | None, after: Row | None) -> dict[str, Any] | None:
    """By default the log has the key of a row that is deleted, and nothing of one that keeps its key."""
    if before is None or (definition.identity == "d" and after is not None):
        return None
    shown = definition.key if definition.identity == "d" else tuple(before)
    return {name: value if name in shown else None for name, value in _told(definition.columns, before).items()}


def _after(definition: Definition, before: Row | None, after: Row | None) -> dict[str, Any] | None:
    if after is None:
        return None
    found = _told(definition.columns, after)
    is_kept = before is not None and KEPT in found and before.get(KEPT) == after[KEPT] is not None
    return found | {KEPT: UNAVAILABLE} if is_kept and definition.identity == "d" else found


def _told(columns: Sequence[tuple[str, Any]], row: Row) -> dict[str, Any]:
    return {name: None if row.get(name) is None else kind.told(row[name]) for name, kind in columns}


def _wrapped(payload: dict[str, Any], schema: dict[str, Any]) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}).encode()
