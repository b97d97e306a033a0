"""A session's state and requests without I/O, shared by the blocking and the asynchronous session.

A read is a *plan*: a generator that yields requests, is sent the response to each, and returns the answer. The method
``get_row`` of a session runs ``plan_row``: its parameters, result and errors are the plan's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

from . import wire
from ._tokens import Position, Vector
from .answers import Row, Table
from .errors import ClientError, HistoryLost, ServerError
from .tracked import TrackedConnection
from .wire import Answer, HttpRequest, HttpResponse

Plan: TypeAlias = Generator[HttpRequest, HttpResponse, Answer]


class SessionState:
    """A session's vector, and the plans of its reads. Safe to share between threads and tasks."""

    def __init__(self, vector: Vector) -> None:
        self._vector = vector
        self._unplaced: dict[str, tuple[str, Position]] = {}
        """Shard → its keyspace and an observed position, until the shard's epoch is known."""
        self._tracked: list[TrackedConnection] = []
        self._lock = threading.RLock()

    @property
    def vector(self) -> Vector:
        """What the session has seen, by shard."""
        with self._lock:
            return self._vector

    def observe(self, shard: str, position: str) -> None:
        """Adds a position that later reads must include, e.g. ``MariaDB/0-1-5`` after a commit. Raises `TokenError`.

        It belongs to the shard's epoch in the session's vector; if there is none, to the epoch that the front names at
        the next read.
        """
        observed = Position.parse(position)
        with self._lock:
            known = self._vector.get(shard)
            if known is not None:
                self._vector = self._vector.merge(Vector({shard: (known.epoch, observed)}))
                return
            before = self._unplaced.get(shard)
            keyspace = shard.rpartition("/")[0] or shard
            self._unplaced[shard] = (keyspace, observed if before is None else before[1].join(observed))

    def adopt(self, token: str) -> None:
        """Merges the token of an answer or of another session. Raises `TokenError`."""
        with self._lock:
            self._vector = self._vector.merge(Vector.parse(token))

    def plan_token(self) -> Plan[str]:
        """The session's vector as text. A session that is given it, on any machine, continues this one."""
        with self._lock:
            for tracked in self._tracked:
                tracked.require_settled()
            unplaced = list(self._unplaced.items())
        for shard, (keyspace, _) in unplaced:
            located = Vector.parse(wire.read_location(*(yield wire.location_request(keyspace, 0))))
            self._place(shard, keyspace, located)
        with self._lock:
            return str(self._vector)

    def _place(self, shard: str, keyspace: str, located: Vector) -> None:
        known = located.get(shard)
        if known is None:
            raise ServerError(
                f"the front does not know shard {shard} of keyspace {keyspace}",
                hint="pass the shard as in the settings, by default <keyspace>/0",
                code="unknown_shard",
            )
        with self._lock:
            # Read it only now: during the request it may have grown, or another thread may have placed it.
            unplaced = self._unplaced.pop(shard, None)
            if unplaced is None:
                return
            # The front may name an older epoch than the session has seen. A write placed in that epoch would be lost.
            seen = self._vector.get(shard)
            epoch = max(known.epoch, seen.epoch) if seen is not None else known.epoch
            self._vector = self._vector.merge(Vector({shard: (epoch, unplaced[1])}))

    def plan_row(
        self,
        keyspace: str,
        table: str,
        *pk: object,
        max_wait_ms: int | None = None,
        include_event_token: bool = False,
        compare_event_token: str | None = None,
    ) -> Plan[Row]:
        """The row with primary key ``pk`` (key columns in key order), at least as new as all the session has seen."""
        params = yield from self._params(max_wait_ms)
        if include_event_token:
            params["include_event_token"] = "true"
        if compare_event_token is not None:
            params["compare_event_token"] = compare_event_token
        request = wire.row_request(keyspace, table, pk, params)
        row: Row = yield from self._ask(request, wire.read_row, params["token"])
        self.adopt(row.token)
        return row

    def plan_rows(
        self, keyspace: str, keys: Sequence[tuple[str, Sequence[object]]], max_wait_ms: int | None = None
    ) -> Plan[list[Row]]:
        """Rows in the order of ``keys``, which are (table, key values). Raises the first error among them."""
        demanded = yield from self.plan_token()
        params: dict[str, str | int] = {"token": demanded}
        if max_wait_ms is not None:
            params["max_wait_ms"] = max_wait_ms
        found, token = yield from self._ask(wire.rows_request(keyspace, keys, params), wire.read_rows, demanded)
        self.adopt(token)
        rows = []
        for element in found:
            if isinstance(element, ClientError):
                self._adopt_lost(element, demanded)
                raise element
            rows.append(element)
        return rows

    def plan_table(
        self,
        db: str,
        table: str,
        valid_write_ids: str | None = None,
        table_id: int = 0,
        *,
        catalog: str = "hive",
        max_wait_ms: int | None = None,
    ) -> Plan[Table]:
        """A catalog table that covers ``valid_write_ids`` (as Hive writes it) and all the session has seen."""
        params = yield from self._params(max_wait_ms)
        request = wire.table_request(catalog, db, table, valid_write_ids, table_id, params)
        found: Table = yield from self._ask(request, wire.read_table, params["token"])
        self.adopt(found.token)
        return found

    def _params(self, max_wait_ms: int | None) -> Plan[dict[str, str]]:
        params = {"token": (yield from self.plan_token())}
        if max_wait_ms is not None:
            params["max_wait_ms"] = str(max_wait_ms)
        return params

    def _ask(self, request: HttpRequest, read: Callable[[int, bytes], Answer], demanded: str) -> Plan[Answer]:
        try:
            return read(*(yield request))
        except HistoryLost as lost:
            self._adopt_lost(lost, demanded)
            raise

    def _adopt_lost(self, error: ClientError, demanded: str) -> None:
        """Applies to the session's vector only what the front changed in the vector that was ``demanded``.

        Meanwhile other threads may have seen more of other shards, or of the lost shard's new epoch.
        """
        if not isinstance(error, HistoryLost) or not error.token:
            return
        before, after = Vector.parse(demanded), Vector.parse(error.token)
        with self._lock:
            for shard, was in before.items():
                mine = self._vector.get(shard)
                if after.get(shard) != was and mine is not None and mine.epoch <= was.epoch:
                    self._vector = self._vector.without(shard)
            self._vector = self._vector.merge(after)
