"""A session's state and requests without I/O, shared by the blocking and the asynchronous session.

A read is a *plan*: a generator that yields requests, is sent the response to each, and returns the answer. The method
``get_row`` of a session runs ``plan_row``: its parameters, result and errors are the plan's.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from . import wire
from ._tokens import Position, Vector
from .answers import KeptAnswer, ListsAnswer, Objects, Page, Row, Table
from .errors import AmbiguousRow, BadRequest, ClientError, HistoryLost, ServerError
from .tracked import TrackedConnection
from .wire import Answer, HttpRequest, HttpResponse

Consistency: TypeAlias = Literal["bounded", "leader", "any"]
"""Who may answer reads of rows, as in docs/start/http-api.md. Each answer proves itself, whoever gives it."""
Plan: TypeAlias = Generator[HttpRequest, HttpResponse, Answer]


class Demanded(NamedTuple):
    """What a request demanded: its ``token``, which holds ``vector`` and the tokens ``newer`` that cannot be read."""

    token: str
    vector: Vector
    newer: tuple[str, ...]


class Doubt(NamedTuple):
    """A commit whose GTID could not be read: on which server (0: unknown), and when (Unix time, seconds)."""

    server: int
    since: float


class Carried(NamedTuple):
    """All that a session must remember, without a call to a front: for `freshet_client.sessions`."""

    token: str
    unplaced: dict[str, str]
    """Shard → position of writes whose epoch nobody has asked for yet."""
    doubts: dict[str, Doubt]


class SessionState:
    """What a session has seen, and the plans of its reads. Safe to share between threads and tasks.

    It merges the tokens that it can read. Those of ``newer`` formats it keeps and sends back as they are: a front
    merges them, and its answer's token stands for all that was demanded.
    """

    def __init__(self, vector: Vector, newer: Sequence[str] = (), consistency: Consistency = "bounded") -> None:
        self._consistency = {} if consistency == "bounded" else {"consistency": consistency}
        self._vector = vector
        self._newer = dict.fromkeys(newer)
        self._unplaced: dict[str, tuple[str, Position]] = {}
        """Shard → its keyspace and an observed position, until the shard's epoch is known."""
        self._doubts: dict[str, Doubt] = {}
        self._tracked: list[tuple[TrackedConnection, str]] = []
        """Each with the shard that its commits are of."""
        self._lock = threading.RLock()

    def _watch(self, tracked: TrackedConnection, shard: str) -> None:
        """Has reads ask the connection for its commits, and forgets those that are closed and have none left."""
        with self._lock:
            self._tracked = [(known, of) for known, of in self._tracked if known is not tracked and not known.is_done]
            self._tracked.append((tracked, shard))

    @property
    def vector(self) -> Vector:
        """What the session has seen, by shard, as far as this version can read it; `token` has all of it."""
        with self._lock:
            return self._vector

    @property
    def known(self) -> str:
        """The tokens of what the session has read. Unlike `plan_token` it leaves out writes that have no epoch yet."""
        with self._lock:
            known = [str(self._vector)] if self._vector or not self._newer else []
            return ",".join([*known, *self._newer])

    def observe(self, shard: str, position: str) -> None:
        """Adds a position that later reads must include, e.g. ``MariaDB/0-1-5`` after a commit. Raises `TokenError`.

        It belongs to the shard's epoch in the session's vector; if there is none, to the epoch that the front names at
        the next read.
        """
        observed = Position.parse(position)
        with self._lock:
            known = self._vector.get(shard)
            if known is not None and not self._newer:
                self._vector = self._vector.merge(Vector({shard: (known.epoch, observed)}))
                return
            before = self._unplaced.get(shard)
            joined = observed if before is None else before[1].join(observed)
            self._unplaced[shard] = (_keyspace_of(shard), joined)

    def doubt(self, shard: str, doubt: Doubt) -> None:
        """Something was committed, and nobody knows its GTID: reads demand all that anybody has committed by then.

        Of two doubts about a shard the later one stays; if they are of two servers, no server can end it.
        """
        with self._lock:
            before = self._doubts.get(shard, doubt)
            server = doubt.server if before.server == doubt.server else 0
            self._doubts[shard] = Doubt(server, max(before.since, doubt.since))

    def doubt_about(self, shard: str) -> Doubt | None:
        """The doubt about ``shard``, to be taken before its server is asked: see `end_doubt`."""
        return self._doubts.get(shard)

    def end_doubt(self, shard: str, doubt: Doubt | None, server: int, position: str) -> None:
        """Ends a ``doubt`` about ``shard`` if its ``server`` has told ``position``: all that is committed there.

        It was there when the server was asked, and nothing else is: a commit that came into doubt since may be later.
        """
        with self._lock:
            if doubt is None or doubt is not self._doubts.get(shard):
                return
            if doubt.server == server != 0 and position:
                self.observe(shard, position)
                del self._doubts[shard]

    @property
    def carried(self) -> Carried:
        """What a session elsewhere must be given to continue this one.

        It can't ask this one's connections: a commit whose GTID is still unknown is a doubt there.
        """
        with self._lock:
            unsettled = [shard for tracked, shard in self._tracked if not tracked.is_settled()]
            doubts = self._doubts | dict.fromkeys(unsettled, Doubt(0, time.time()))
            unplaced = {shard: str(position) for shard, (_, position) in self._unplaced.items()}
            return Carried(self.known if self._vector or self._newer else "", unplaced, doubts)

    def adopt(self, token: str) -> None:
        """Merges the token of an answer or of another session. Raises `TokenError`."""
        vector, newer = Vector.parse_known(token)
        with self._lock:
            self._vector = self._vector.merge(vector)
            self._newer |= dict.fromkeys(newer)

    def plan_token(self) -> Plan[str]:
        """What the session has seen, as text. A session that is given it, on any machine, continues this one."""
        return (yield from self._plan_demand()).token

    def _plan_demand(self) -> Plan[Demanded]:
        with self._lock:
            for tracked, _ in self._tracked:
                tracked.require_settled()
            unplaced = list(self._unplaced.items())
        for shard, (keyspace, _) in unplaced:
            # A front that wrote a newer token can say which epoch it names; it may be ahead of the owner's.
            params = {"token": ",".join(self._newer)} if self._newer else {}
            epochs = wire.read_epochs(*(yield wire.location_request(keyspace, 0, params)))
            self._place(shard, keyspace, epochs)
        with self._lock:
            return Demanded(self.known, self._vector, tuple(self._newer))

    def _place(self, shard: str, keyspace: str, epochs: Mapping[str, int]) -> None:
        known = epochs.get(shard)
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
            epoch = max(known, seen.epoch) if seen is not None else known
            self._vector = self._vector.merge(Vector({shard: (epoch, unplaced[1])}))

    def is_in_doubt(self, keyspace: str) -> bool:
        """Whether something was committed in a keyspace of which no token can tell (`doubt`).

        Ask it before the token: a doubt that has ended is in a token that is read afterwards, and one that ends later
        counts.
        """
        with self._lock:
            return any(_keyspace_of(shard) == keyspace for shard in self._doubts)

    def _bound(self, keyspace: str, max_staleness_ms: int | None) -> int | None:
        """What is demanded of the source's clock: in doubt, all that is committed by now. Before `_plan_demand`."""
        return 0 if self.is_in_doubt(keyspace) else max_staleness_ms

    def plan_row(
        self,
        keyspace: str,
        table: str,
        *pk: object,
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
        include_event_token: bool = False,
        compare_event_token: str | None = None,
    ) -> Plan[Row]:
        """The row with primary key ``pk`` (key columns in key order), at least as new as all the session has seen.

        With ``max_staleness_ms`` also as new as all that was committed until that long before the request.
        """
        bound = self._bound(keyspace, max_staleness_ms)
        demanded = yield from self._plan_demand()
        params = _params(demanded, max_wait_ms, bound) | self._consistency
        if include_event_token:
            params["include_event_token"] = "true"
        if compare_event_token is not None:
            params["compare_event_token"] = compare_event_token
        request = wire.row_request(keyspace, table, pk, params)
        row: Row = yield from self._ask(request, wire.read_row, demanded)
        self._answered(row.token, demanded)
        return row

    def plan_put_row(
        self,
        keyspace: str,
        table: str,
        row: Mapping[str, Any] | None,
        *pk: object,
        token: str = "",
        max_wait_ms: int | None = None,
    ) -> Plan[KeptAnswer]:
        """Gives the cache the ``row`` with primary key ``pk``, as of ``token`` and all the session has seen.

        Freshet proves it: `Conflict` ``fill_lost`` if the row is another one by then. None: there is no such row.
        """
        if token:
            self.adopt(token)
        demanded = yield from self._plan_demand()
        request = wire.given_request(keyspace, table, pk, row, _params(demanded, max_wait_ms))
        kept: KeptAnswer = yield from self._ask(request, wire.read_kept, demanded)
        self._answered(kept.token, demanded)
        return kept

    def plan_rows(
        self,
        keyspace: str,
        keys: Sequence[tuple[str, Sequence[object]]],
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[list[Row]]:
        """Rows in the order of ``keys``, which are (table, key values). Raises the first error among them."""
        bound = self._bound(keyspace, max_staleness_ms)
        demanded = yield from self._plan_demand()
        params: dict[str, str | int] = {"token": demanded.token, **self._consistency}
        if max_wait_ms is not None:
            params["max_wait_ms"] = max_wait_ms
        if bound is not None:
            params["max_staleness_ms"] = bound
        found, token = yield from self._ask(wire.rows_request(keyspace, keys, params), wire.read_rows, demanded)
        self._answered(token, demanded)
        rows = []
        for element in found:
            if isinstance(element, ClientError):
                self._adopt_lost(element, demanded)
                raise element
            rows.append(element)
        return rows

    def plan_find(
        self,
        keyspace: str,
        table: str,
        columns: Mapping[str, object] | None = None,
        *,
        order_by: str = "",
        limit: int | None = None,
        page: str = "",
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[Page]:
        """The rows in which leading columns of the primary key (none: all rows), or an index's, have these values.

        They are as they were at one position, at least as new as all the session has seen. ``order_by``: columns, each
        after a ``-`` for descending, before those of the key. ``page``: of the answer after which to go on.
        """
        params = {name: value for name, value in (("order_by", order_by), ("page", page)) if value}
        if limit is not None:
            params["limit"] = str(limit)
        return (yield from self._plan_range(keyspace, table, columns, params, max_wait_ms, max_staleness_ms))

    def plan_count(
        self,
        keyspace: str,
        table: str,
        columns: Mapping[str, object] | None = None,
        *,
        limit: int | None = None,
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[int]:
        """How many rows `find` would find, counted up to ``limit``."""
        params = {"only": "count"} if limit is None else {"only": "count", "limit": str(limit)}
        found = yield from self._plan_range(keyspace, table, columns, params, max_wait_ms, max_staleness_ms)
        if found.count is None:
            raise ServerError("the response has no count", hint="upgrade the front", code="bad_answer")
        return found.count

    def plan_get_by(
        self,
        keyspace: str,
        table: str,
        columns: Mapping[str, object],
        *,
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[dict[str, Any] | None]:
        """The only row with these values in the columns of an index; None if there is none.

        Raises `AmbiguousRow` if there are several.
        """
        waiting = {"max_wait_ms": max_wait_ms, "max_staleness_ms": max_staleness_ms}
        found = yield from self._plan_range(keyspace, table, columns, {"limit": "2"}, **waiting)
        if len(found.rows) > 1:
            raise AmbiguousRow(f"several rows of {table} have {dict(columns)}", hint="use find")
        return found.rows[0] if found.rows else None

    def plan_exists(
        self,
        keyspace: str,
        table: str,
        columns: Mapping[str, object] | None = None,
        *,
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[bool]:
        """Whether `find` would find a row."""
        waiting = {"max_wait_ms": max_wait_ms, "max_staleness_ms": max_staleness_ms}
        return bool((yield from self.plan_count(keyspace, table, columns, limit=1, **waiting)))

    def _plan_range(
        self,
        keyspace: str,
        table: str,
        columns: Mapping[str, object] | None,
        params: Mapping[str, str],
        max_wait_ms: int | None,
        max_staleness_ms: int | None,
    ) -> Plan[Page]:
        bound = self._bound(keyspace, max_staleness_ms)
        demanded = yield from self._plan_demand()
        params = {**params, **_params(demanded, max_wait_ms, bound), **self._consistency}
        request = wire.range_request(keyspace, table, columns or {}, params)
        found: Page = yield from self._ask(request, wire.read_page, demanded)
        self._answered(found.token, demanded)
        return found

    def plan_table(
        self,
        db: str,
        table: str,
        valid_write_ids: str | None = None,
        table_id: int = 0,
        *,
        catalog: str = "hive",
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[Table]:
        """A catalog table that covers ``valid_write_ids`` (as Hive writes it) and all the session has seen.

        ``max_staleness_ms``: as of a row, like for all that is read of a catalog.
        """
        bound = self._bound(catalog, max_staleness_ms)
        demanded = yield from self._plan_demand()
        params = _params(demanded, max_wait_ms, bound)
        request = wire.table_request(catalog, db, table, valid_write_ids, table_id, params)
        found: Table = yield from self._ask(request, wire.read_table, demanded)
        self._answered(found.token, demanded)
        return found

    def plan_partitions(
        self,
        db: str,
        table: str,
        valid_write_ids: str | None = None,
        table_id: int = 0,
        *,
        filter: str = "",
        names: Sequence[Sequence[str]] = (),
        values: Sequence[str] = (),
        names_only: bool = False,
        count: bool = False,
        limit: int = 0,
        page: str = "",
        catalog: str = "hive",
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[Objects]:
        """A table's partitions: all, those in ``names``, those that begin with ``values``, or that pass ``filter``.

        ``names``: of each its values. ``page``: ``next_page`` of the answer before; if the partitions changed since,
        it raises `Conflict` ``page_expired``. The rest is as for a table.
        """
        wanted = {"filter": filter, "page": page, "limit": str(limit) if limit else ""}
        wanted["names"] = json_text([list(each) for each in names]) if names else ""
        wanted["values"] = json_text(list(values)) if values else ""
        wanted |= {"names_only": "true" if names_only else "", "count": "true" if count else ""}
        query = _of_table(valid_write_ids, table_id) | {name: text for name, text in wanted.items() if text}
        return (yield from self._plan_objects("partitions", (db, table), query, catalog, max_wait_ms, max_staleness_ms))

    def plan_statistics(
        self,
        db: str,
        table: str,
        valid_write_ids: str | None = None,
        table_id: int = 0,
        *,
        partition: Sequence[str] = (),
        aggregate: bool = False,
        catalog: str = "hive",
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[Objects]:
        """Column statistics of a table, of one ``partition``, or of all partitions together (``aggregate``).

        ``stats_compliant`` says whether they hold for ``valid_write_ids``; None: nobody can tell, as with
        ``aggregate`` of a transactional table that has many partitions.
        """
        query = _of_table(valid_write_ids, table_id)
        if partition:
            query["partition"] = json_text(list(partition))
        if aggregate:
            query["aggregate"] = "true"
        return (yield from self._plan_objects("statistics", (db, table), query, catalog, max_wait_ms, max_staleness_ms))

    def plan_constraints(
        self,
        db: str,
        table: str,
        valid_write_ids: str | None = None,
        table_id: int = 0,
        *,
        catalog: str = "hive",
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[Objects]:
        """A table's constraints, all kinds in one object."""
        query = _of_table(valid_write_ids, table_id)
        return (
            yield from self._plan_objects("constraints", (db, table), query, catalog, max_wait_ms, max_staleness_ms)
        )

    def plan_databases(
        self,
        db: str = "",
        *,
        page: str = "",
        catalog: str = "hive",
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[Objects]:
        """One database, or all of the catalog."""
        path, query = ((db,) if db else ()), ({"page": page} if page else {})
        return (yield from self._plan_objects("databases", path, query, catalog, max_wait_ms, max_staleness_ms))

    def plan_functions(
        self,
        db: str,
        function: str = "",
        *,
        page: str = "",
        catalog: str = "hive",
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[Objects]:
        """One function, or all of a database."""
        path, query = ((db, function) if function else (db,)), ({"page": page} if page else {})
        return (yield from self._plan_objects("functions", path, query, catalog, max_wait_ms, max_staleness_ms))

    def plan_lists(
        self, tables: Sequence[str], txn: int = 0, txns: str = "", *, catalog: str = "hive", adopt: bool = False
    ) -> Plan[ListsAnswer]:
        """What a transaction needs to read ``tables`` (each ``db.table``): their lists and ids, past the cache.

        ``txn``: its own number at the metastore; ``txns``: the list of transactions that it has already. ``adopt``: the
        session's reads are from here on at least as new as the answer, tables without a list too.
        """
        demanded = yield from self._plan_demand()
        asked = (catalog, tables, txn, txns, {"token": demanded.token})
        found: ListsAnswer
        try:
            found = yield from self._ask(wire.lists_request(*asked), wire.read_lists, demanded)
        except BadRequest as refused:
            if refused.code != "method_not_allowed":
                raise
            # an older front takes only GET
            found = yield from self._ask(wire.lists_request(*asked, url_max=sys.maxsize), wire.read_lists, demanded)
        if adopt:
            self._answered(found.token, demanded)
        return found

    def _plan_objects(
        self,
        kind: str,
        path: Sequence[str],
        query: Mapping[str, str],
        catalog: str,
        max_wait_ms: int | None,
        max_staleness_ms: int | None,
    ) -> Plan[Objects]:
        bound = self._bound(catalog, max_staleness_ms)
        demanded = yield from self._plan_demand()
        params = {"catalog": catalog, **query, **_params(demanded, max_wait_ms, bound)}
        found: Objects = yield from self._ask(wire.objects_request(kind, path, params), wire.read_objects, demanded)
        self._answered(found.token, demanded)
        return found

    def _answered(self, token: str, demanded: Demanded) -> None:
        """Adopts the token of an answer, which holds all that was demanded and often nothing more."""
        if token and token != demanded.token:
            self._replace(demanded.newer, token)

    def _replace(self, newer: Sequence[str], token: str) -> None:
        with self._lock:
            for each in newer:
                self._newer.pop(each, None)
        self.adopt(token)

    def _ask(self, request: HttpRequest, read: Callable[[int, bytes], Answer], demanded: Demanded) -> Plan[Answer]:
        try:
            return read(*(yield request))
        except HistoryLost as lost:
            self._adopt_lost(lost, demanded)
            raise

    def _adopt_lost(self, error: ClientError, demanded: Demanded) -> None:
        """Applies to the session's vector only what the front changed in the vector that was ``demanded``.

        Meanwhile other threads may have seen more of other shards, or of the lost shard's new epoch. If the new token
        cannot be read, it stands for all that was demanded.
        """
        if not isinstance(error, HistoryLost) or not error.token:
            return
        after, newer = Vector.parse_known(error.token)
        with self._lock:
            for shard, was in demanded.vector.items():
                mine = self._vector.get(shard)
                is_changed = bool(newer) or after.get(shard) != was
                if is_changed and mine is not None and (mine == was if newer else mine.epoch <= was.epoch):
                    self._vector = self._vector.without(shard)
        self._replace(demanded.newer, error.token)


def _keyspace_of(shard: str) -> str:
    return shard.rpartition("/")[0] or shard


def json_text(value: object) -> str:
    """A parameter that is JSON."""
    return msgspec.json.encode(value).decode()


def _of_table(valid_write_ids: str | None, table_id: int) -> dict[str, str]:
    query = {} if valid_write_ids is None else {"valid_write_ids": valid_write_ids}
    return query | {"table_id": str(table_id)} if table_id else query


def _params(demanded: Demanded, max_wait_ms: int | None, max_staleness_ms: int | None = None) -> dict[str, str]:
    params = {"token": demanded.token}
    if max_wait_ms is not None:
        params["max_wait_ms"] = str(max_wait_ms)
    if max_staleness_ms is not None:
        params["max_staleness_ms"] = str(max_staleness_ms)
    return params
