"""Sessions that read rows, whole tables and their numbers through a front while shards become others.

The front's sources are the servers of the application's map, so it is started again when the application moves.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

from lab.simulation.engine import Outcome
from lab.simulation.installation.processes import KAFKA, Consuming, start_consumer
from lab.simulation.kernel.fronts import blocking_client, listen
from lab.simulation.successions.run import (
    KEYSPACE,
    MAPS,
    RECOVERS,
    SETTLES_IN_S,
    SuccessionsRun,
)  # fmt: skip
from lab.simulation.successions.tables import LAYOUT, NAME, ROWS
from lab.simulation.whole_processes.run import CLIENT
from lab.simulation.whole_processes.words import DEFECTS, EXPLAINS, NEVER_RAISES
from serving.client.client import Session
from serving.client.errors import ClientError
from serving.errors import ReadError
from serving.http.front import make_front
from serving.locations.directory import TopicDirectory
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from serving.sources.source import RowTable, SchemaChanged, SourceKey, SourceRange, SourceRow
from stream.kafka.locations import LocationsReader
from stream.shards.map import ShardMap
from stream.sources.key_range import KeyRange
from stream.wire.events import RowChange
from stream.wire.keys import row_key
from tokens import Position

STALE: Final = "no stale answer"
OWN_WRITES: Final = "read your writes"
MONOTONIC: Final = "monotonic reads"
WHOLE_RANGES: Final = "whole ranges"
RULES: Final = (STALE, OWN_WRITES, MONOTONIC, WHOLE_RANGES, EXPLAINS)
CONSUMER: Final = "consumer-0"
FRONT: Final = "front"
FRONT_PORT: Final = 8_480
SESSIONS: Final = 2
PAGE_ROWS: Final = 7
PAGES_OF_LOTS: Final = (1, 3, PAGE_ROWS, 0)
"""Rows of a page; 0: they are counted."""
PATIENCE_S: Final = (0.0, 0.05, 1.0, 60.0)
_NOTHING: Final = -1
Seen = dict[bytes, int]
"""Key → the number of the write that a session must see, or of a later one."""


class ServerRows:
    """The rows of one server, as a front reads them: all that is in its log. ``map``: as the front has it."""

    def __init__(self, run: ReadingRun, shard: str, map: ShardMap) -> None:
        self.shard = shard
        self._run = run
        self._map = map

    async def describe(self, table: str) -> RowTable | None:
        """See `serving.sources.source.RowSource`."""
        of = self._run.table.described
        return RowTable(NAME, of.columns[:-1], True, prefix=of.prefix, columns=of.columns) if table == NAME else None

    async def read(self, wanted: Sequence[SourceKey]) -> list[SourceRow | ReadError | SchemaChanged]:
        """See `serving.sources.source.RowSource`."""
        at, rows = self._run.position_of(self.shard), self._run.rows_of(self.shard)
        keys = [row_key(each.table.name, each.values) for each in wanted]
        return [SourceRow(rows.get(key), key, at, at) for key in keys]

    async def read_range(self, table: RowTable, wanted: KeyRange) -> SourceRange:
        """See `serving.sources.source.RowSource`. What neighbours have there is deleted."""
        del table
        at, rows = self._run.position_of(self.shard), self._run.rows_of(self.shard)
        of = self._run.table
        own = {key: image for key, image in rows.items() if self._map.shard_of(of.ids[key]) == self.shard}
        asked = of.in_lot(int(str(wanted.leading[0]))) if wanted.leading else of.keys
        found = [(key, own[key]) for key in asked if key in own]
        if not wanted.limit:
            return SourceRange((), len(found), False, at, at)
        if wanted.after:
            found = [each for each in found if of.keys.index(each[0]) > int(str(wanted.after[-1]))]
        return SourceRange(found[: wanted.limit], min(len(found), wanted.limit), len(found) > wanted.limit, at, at)

    async def wait(self, position: Position, timeout_s: float, tables: Collection[str]) -> bool:
        """See `serving.sources.source.RowSource`. Nothing comes so soon that is not there."""
        del tables
        await asyncio.sleep(timeout_s)
        return self._run.position_of(self.shard).at_or_past(position)

    async def close(self) -> None:
        """There is nothing to close."""


class ReadingRun(SuccessionsRun):
    """As `SuccessionsRun`; in histories with readers also a consumer, a front and sessions."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self._sessions: dict[int, Session] = {}
        self._seen: dict[int, Seen] = defaultdict(dict)
        self._wrote: dict[int, Seen] = defaultdict(dict)

    @property
    def map(self) -> ShardMap:
        """The application's map."""
        return MAPS[self.application]

    def begin(self) -> None:
        """See `SuccessionsRun.begin`."""
        super().begin()
        if self.has_readers:
            self._start_consumer()
            self._start_front()

    def _start_consumer(self) -> None:
        if not self.kernel.is_running(CONSUMER):
            self.kernel.process(CONSUMER).at_end.append(partial(self.kafka.forget, CONSUMER))
            start_consumer(
                self.kernel, CONSUMER, Consuming((KEYSPACE,), self.disk.data_dir(CONSUMER), {}), self.gave_up
            )

    def _start_front(self) -> None:
        self.kernel.process(FRONT).at_end.append(partial(self.kafka.forget, FRONT))
        self.kernel.spawn(FRONT, self._serve, "serve")

    def _serve(self) -> None:
        """``freshet serve``."""
        reader = LocationsReader(KAFKA).start(patient=True)
        sources = [ServerRows(self, shard, self.map) for shard in self.map.shards]
        space = RowSpace(KEYSPACE, LAYOUT, KEYSPACE, sources=sources, map=self.map)
        front = make_front([space], Locations(TopicDirectory(reader)))
        self.kernel.run_task(FRONT, lambda: listen(front, FRONT_PORT))

    # --- what is true ---

    def position_of(self, shard: str) -> Position:
        """Of a server: all that it has."""
        has = Position.parse(self._nothing)
        for each in self.servers[shard]:
            has = has.append(each.gtid)
        return has

    def rows_of(self, shard: str) -> Mapping[bytes, bytes]:
        """The rows of a server."""
        return {
            change.key: change.image
            for txn in self.servers[shard]
            for change in txn.changes
            if isinstance(change, RowChange)
        }

    def _numbers(self, images: Mapping[bytes, bytes]) -> Seen:
        return {key: self.written[key].index(image) for key, image in images.items()}

    def _with_earlier(self, key: bytes, number: int) -> Seen:
        """What is seen with a write of ``key``: all before it, of keys that have never been in another shard."""
        image, found = self.written[key][number], dict[bytes, bytes]()
        server = json.loads(image)["at"].rpartition("-")[0]
        for txn in self.servers[server]:
            rows = [each for each in txn.changes if isinstance(each, RowChange)]
            found |= {each.key: each.image for each in rows if self._place(each.key) == self._place(key)}
            if any(each.image == image for each in rows):
                break
        return self._numbers(found)

    # --- ops ---

    def op_settings(self, pause: int) -> None:
        """See `SuccessionsRun.op_settings`. Sources of shards that stay are restarted."""
        before = self.settings
        super().op_settings(pause)
        if self.has_readers and self.settings != before:
            for shard in sorted({*MAPS[before].shards} & {*MAPS[self.settings].shards}):
                self.kernel.kill(shard)
                self.start(shard)

    def op_move(self, pause: int) -> None:
        """See `SuccessionsRun.op_move`. Fronts are started again."""
        before = self.application
        super().op_move(pause)
        if self.has_readers and self.application != before:
            self.kernel.kill(FRONT)
            self._start_front()

    def op_consumer(self, pause: int) -> None:
        """The consumer dies, and comes back after a while."""
        if self.has_readers:
            self.count_fault("kill")
            self.kernel.kill(CONSUMER)
            self.pause(pause)
            self._start_consumer()

    def op_observe(self, session: int, shard: int) -> None:
        """A session has written at a server of the map, or waits for all that somebody else has written there."""
        if not self.has_readers:
            return
        number, names = session % SESSIONS, [*self.map.shards]
        name = names[shard % len(names)]
        self._session(number).observe(name, str(self.position_of(name)))
        rows = {key: at for key, at in self.rows_of(name).items() if self.map.shard_of(self.table.ids[key]) == name}
        _raise(self._wrote[number], self._numbers(rows))
        self.say(f"session {number} has written at {name}, at {self.position_of(name)}")

    def op_read(self, session: int, key: int, patience: int) -> None:
        """A session reads a row."""
        self._do(patience, lambda: self._read_row(session % SESSIONS, key % ROWS))

    def op_read_all(self, session: int, patience: int) -> None:
        """A session reads all rows, page by page."""
        self._do(patience, lambda: self._read_pages(session % SESSIONS, {}, PAGE_ROWS))

    def op_read_lot(self, session: int, lot: int, way: int, patience: int) -> None:
        """A session reads the rows of a lot, page by page or at once, or asks how many there are."""
        if self.table.lot_rows:
            number, which = session % SESSIONS, self.table.lot(lot)
            limit = PAGES_OF_LOTS[way % len(PAGES_OF_LOTS)]
            self._do(patience, lambda: self._read_pages(number, which, limit) if limit else self._count(number, which))

    def op_count(self, session: int, patience: int) -> None:
        """A session asks how many rows there are."""
        self._do(patience, lambda: self._count(session % SESSIONS, {}))

    def _session(self, number: int) -> Session:
        if number not in self._sessions:
            self._sessions[number] = blocking_client(self.kernel, [FRONT_PORT]).session()
        return self._sessions[number]

    def _do(self, patience: int, work: Callable[[], object]) -> None:
        if self.has_readers:
            thread = self.kernel.spawn(CLIENT, work)
            self.run_until(lambda: thread.done, PATIENCE_S[patience % len(PATIENCE_S)])

    def _read_row(self, number: int, key: int) -> str:
        """Where a row came from fresh; "" if it did not."""
        seen, own = dict(self._seen[number]), dict(self._wrote[number])
        row = self._ask(number, lambda: self._session(number).get_row(KEYSPACE, NAME, *self.table.values(key)))
        if row is None:
            return ""
        self.outcome.answers[f"{row.freshness} from the {row.served_from}"] += 1
        what = f"session {number}: row {key} is {row.value}, {row.freshness} from the {row.served_from}: {row.why}"
        self.say(what)
        name = self.table.keys[key]
        self._judge(number, {name: row.value} if row.value is not None else {}, [name], (seen, own), what)
        return row.served_from if row.freshness == "fresh" else ""

    def _read_pages(self, number: int, lot: Mapping[str, int], limit: int) -> str:
        """Where all rows, or those of a ``lot``, came from fresh; "" if they did not, or from more than one place."""
        asked = self.table.in_lot(lot["lot"]) if lot else self.table.keys
        seen, own = dict(self._seen[number]), dict(self._wrote[number])
        rows, page, moved, places = dict[bytes, Any](), "", False, set[str]()
        while True:
            get = partial(self._session(number).find, KEYSPACE, NAME, lot, limit=limit, page=page)
            found = self._ask(number, get)
            if found is None:
                return ""
            these = {self.table.keys[int(row["id"])]: row for row in found.rows}
            self._judge_page(number, rows, these, asked)
            rows |= these
            moved, page = moved or found.moved, found.page
            places.add(found.served_from if found.freshness == "fresh" else "")
            if not page:
                break
        self.outcome.answers[f"range, from {'the '.join(sorted(places))}"] += 1
        which, kind = lot or "all", f"{'moved, ' * moved}{found.freshness}"
        what = f"session {number}: {which} rows are {[*rows.values()]}, {kind}: {found.why}"
        self.say(what)
        self._judge(number, rows, asked, (seen, own), what)
        if not moved:
            self._judge_state(rows, asked, what)
        return places.pop() if len(places) == 1 else ""

    def _judge_page(
        self, number: int, before: Mapping[bytes, Any], rows: Mapping[bytes, Any], asked: Sequence[bytes]
    ) -> None:
        """The rows of a page are some that are asked for, in their order and behind those of the pages before."""
        places = [asked.index(key) if key in asked else _NOTHING for key in (*before, *rows)]
        if places != sorted(set(places)) or _NOTHING in places:
            self.complain(WHOLE_RANGES, f"session {number} gets {[*rows]} behind {[*before]}")

    def _judge_state(self, rows: Mapping[bytes, Any], asked: Sequence[bytes], what: str) -> None:
        """Rows that were written before one of them at the same server are there, as they were then or later."""
        shown = {key: _number_of(row, self.written.get(key, ())) for key, row in rows.items()}
        for key, number in shown.items():
            if number == _NOTHING:
                return  # it is complained of already
            for other, least in self._with_earlier(key, number).items():
                if other in asked and shown.get(other, _NOTHING) < least:
                    self.complain(WHOLE_RANGES, f"{what}: write {number} of {key!r}, and not {least} of {other!r}")
                    return

    def _count(self, number: int, lot: Mapping[str, int]) -> None:
        asked = self.table.in_lot(lot["lot"]) if lot else self.table.keys
        seen = [key for key in asked if key in self._seen[number] or key in self._wrote[number]]
        found = self._ask(number, lambda: self._session(number).count(KEYSPACE, NAME, lot))
        if found is not None:
            self.say(f"session {number}: there are {found} {lot or ''} rows")
            most = sum(key in self.written for key in asked)
            if not len(seen) <= found <= most:
                self.complain(WHOLE_RANGES, f"session {number} counts {found} {lot} rows of {most}, saw {len(seen)}")

    def _ask(self, number: int, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except ClientError as error:
            self.outcome.answers[f"refused: {error.code}"] += 1
            self.say(f"session {number}: {error.code}: {error}")
            if error.code in DEFECTS:
                self.complain(NEVER_RAISES, f"session {number} got the error {error.code}: {error}")
            if error.code == "history_lost":
                self.complain(EXPLAINS, f"session {number} was told that history is lost: {error}")
            return None

    def _judge(
        self, number: int, rows: Mapping[bytes, Any], asked: Sequence[bytes], known: tuple[Seen, Seen], what: str
    ) -> None:
        for key in asked:
            shown = _number_of(rows[key], self.written.get(key, ())) if key in rows else _NOTHING
            if key in rows and shown == _NOTHING:
                self.complain(STALE, f"{what}: nobody has written that")
                return
            for rule, seen in ((MONOTONIC, known[0]), (OWN_WRITES, known[1])):
                if shown < seen.get(key, _NOTHING):
                    self.complain(rule, f"{what}: write {shown} of {key!r}, and the session has seen {seen[key]}")
                    return
            if shown > _NOTHING:
                _raise(self._seen[number], self._with_earlier(key, shown))

    def _place(self, key: bytes) -> str:
        """The smallest shard that a key is ever in."""
        return MAPS[1].shard_of(self.table.ids[key])

    # --- the end ---

    def _are_lots_read(self) -> bool:
        """Whether each lot comes fresh from one place."""
        lots = range(ROWS // self.table.lot_rows if self.table.lot_rows else 0)
        return all(self._read_pages(0, self.table.lot(lot), PAGE_ROWS) for lot in lots)

    def finish(self) -> None:
        """See `SuccessionsRun.finish`. Then every row must come fresh from the cache, and all of them together."""
        super().finish()
        if not self.has_readers or self.outcome.violations:
            return
        self._start_consumer()
        for shard in range(len(self.map.shards)):
            self.op_observe(SESSIONS, shard)
        missing = [number for number, key in enumerate(self.table.keys) if self.written.get(key)]

        def work() -> None:
            end = self.kernel.now + SETTLES_IN_S
            while self.kernel.now < end and not self.outcome.violations:
                missing[:] = [key for key in missing if self._read_row(0, key) != "cache"]
                if not missing and self._read_pages(0, {}, PAGE_ROWS) and self._are_lots_read():
                    return
                self.kernel.wait(lambda: False, 0.5)
            missing.append(_NOTHING)

        thread = self.kernel.spawn(CLIENT, work)
        self.run_until(lambda: thread.done, 2 * SETTLES_IN_S)
        if missing and not self.outcome.violations:
            self.complain(RECOVERS, f"rows {missing} are not fresh from the cache")


def _number_of(row: Mapping[str, Any], images: Sequence[bytes]) -> int:
    return next((number for number, image in enumerate(images) if row == json.loads(image)), _NOTHING)


def _raise(seen: Seen, more: Seen) -> None:
    for key, number in more.items():
        seen[key] = max(number, seen.get(key, _NOTHING))
