"""The loop of a sink: reads tables whole where it must, and follows the change stream.

The seed's order: remember where the stream is (StartTime), read the tables without tokens, then follow from there. So
it is for a table that a DDL, a cascade whose rows are not known, or a message that nobody can read has voided: it is
due, and is read again in pages when the next watermark comes. Each page is read as of all that is in the copy already,
so nothing goes back by it; the stream tells again what the pages had before it. Rows that a whole reading has not met
are gone.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, Final

import msgspec
import sqlalchemy as sa
import structlog

from serving.client import FreshetClient, HistoryLost, Session, StreamChange, StreamEvent
from serving.client.answers import DescribedColumn, DescriptionAnswer, Page
from serving.sink.applying import Batch, remove_unread, write_page
from serving.sink.awaiting import Answer, AwaitedShards, patiently
from serving.sink.errors import SinkError
from serving.sink.state import STATE_NAME, SinkState, StateTable, name_in_copy
from serving.sink.tables import (
    CopyTable,
    check_columns,
    check_described,
    drop_table,
    exists,
    fits,
    kinds_of,
    last_reading,
    open_table,
)
from tokens import Vector

CHANGES_MAX: Final = 500
"""Changes are committed when they are so many, or at the next watermark."""
IDLE_COMMIT_S: Final = 5.0
"""A checkpoint is at most about so old, also where nothing changes."""
HEARTBEAT_MS: Final = 250
PAGE_ROWS: Final = 1_000
READERS: Final = 4
SHARD_WAIT_S: Final = 60.0
_log = structlog.get_logger(__name__)


class Sink:
    """A copy of ``tables`` (each ``db.table``) of a keyspace. ``shards``: those that write in it.

    ``follows_schemas``: a table that gets another description is made anew and read again; else the sink ends.
    ``readers``: so many tables are read side by side. ``shard_wait_s``: how long nothing may be heard of a shard.
    """

    def __init__(
        self,
        client: FreshetClient,
        keyspace: str,
        engine: sa.Engine,
        tables: Iterable[str],
        shards: Iterable[str],
        *,
        follows_schemas: bool = False,
        readers: int = READERS,
        shard_wait_s: float = SHARD_WAIT_S,
    ) -> None:
        self._client, self._keyspace, self._engine = client, keyspace, engine
        self._wanted, self._shards = sorted(set(tables)), frozenset(shards)
        self._follows_schemas, self._readers = follows_schemas, readers
        self._shard_wait_s = shard_wait_s
        self._metadata = sa.MetaData()
        self._states = StateTable(self._metadata, keyspace)
        self._state = SinkState()
        self._tables: dict[str, CopyTable] = {}
        self._batch = Batch()
        self._committed_at = monotonic()
        self._withheld_since: float | None = None
        """When the stream was first known here not to tell of a table."""

    def run(self, *, is_done: Callable[[Vector], bool] = lambda _: False) -> None:
        """Until ``is_done`` says so of a watermark that is in the copy, with all tables read. Raises `SinkError`.

        It may be killed anywhere, and run again. Raises `ClientError`, and SQLAlchemy's errors.
        """
        self._open()
        while True:
            self._follow(is_done)
            if not self._state.due:
                return
            self._read_due()

    def _open(self) -> None:
        self._state = self._states.load(self._engine)
        self._leave_out()
        names = {name_in_copy(name) for name in self._wanted}
        if STATE_NAME in names:
            raise SinkError(f"a table of the copy can't be called {STATE_NAME}: the sink keeps its checkpoints there")
        if bare := [name for name in self._wanted if not name_in_copy(name)]:
            raise SinkError(f"the table {bare[0]!r} has no database", hint="write db.table")
        if len(names) != len(self._wanted):
            raise SinkError("two tables have one name in the copy", hint="copy them into two databases")
        self._check_others()
        for table in self._wanted:
            described = self._client.describe(self._keyspace, table)
            check_described(described, table)
            is_new = table not in self._state.copies  # what is there under its name is not ours to drop
            if not is_new and not self._has_copy_of(described):
                self._state = self._state.with_due(table)
                self._commit()  # before it is there: a kill in between loses no rows
                drop_table(self._engine, described)
            copy = open_table(self._engine, self._metadata, described)
            if is_new or not self._state.copies[table].is_wanted:
                self._state = self._state.with_new(table, last_reading(self._engine, copy))
            elif not self._follows_schemas:  # else the copy has the columns of the description, and no others
                learnt = {name: kind for name, kind in self._state.copies[table].kinds.items() if name in copy.table.c}
                copy = replace(copy, kinds={**learnt, **copy.kinds})
            self._tables[table] = copy
            self._state = self._state.with_kinds(table, copy.kinds).with_key(table, copy.key, self._shards)

    def _has_copy_of(self, described: DescriptionAnswer) -> bool:
        """Whether a table's copy is there; where schemas are followed, of these columns and kinds."""
        if not self._follows_schemas:
            return exists(self._engine, described)
        known = self._state.copies[described.table].kinds
        return fits(self._engine, described) and known in ({}, kinds_of(described.columns))

    def _check_others(self) -> None:
        """Raises `SinkError` ``sink_refused`` if another keyspace has a copy under the name of a table of this one."""
        taken = self._states.taken_elsewhere(self._engine)
        for table in self._wanted:
            if (keyspace := taken.get(name_in_copy(table))) is not None:
                raise SinkError(
                    f"the sink of keyspace {keyspace} has a copy of that name here: {table}",
                    hint=f"copy into another database, or delete the row of {keyspace} in {STATE_NAME} if it has ended",
                )

    def _leave_out(self) -> None:
        """Nothing is awaited of what is no shard. A table that is not wanted now is read again if it is once more.

        That it is wanted again counts once its copy is open: another keyspace may have written there meanwhile.
        """
        for table, before in self._state.copies.items():
            by = tuple(shard for shard in before.withheld_by if shard in self._shards)
            now = msgspec.structs.replace(before, withheld_by=by, is_wanted=before.is_wanted and table in self._wanted)
            if now != before:
                self._state = self._state.with_copy(table, now).with_due(table)

    def _follow(self, is_done: Callable[[Vector], bool]) -> None:
        """Applies the stream up to a watermark at which a table is to be read, or that is the last one wanted."""
        events = self._client.stream(
            self._keyspace,
            self._state.checkpoint or "now",
            tables=self._wanted,
            include_rows=True,
            heartbeat_ms=HEARTBEAT_MS,
            give_up_s=None,
        )
        awaited = AwaitedShards(self._shards, self._shard_wait_s)
        with closing(events):  # type: ignore[type-var]  # a generator
            for event in events:
                self._take(event)
                if event.kind != "watermark":
                    continue
                reached = Vector.parse_known(event.token)[0] if event.token else Vector()
                is_whole = not self._state.withheld
                ends = awaited.are_in(reached) and (bool(self._state.due) or (is_whole and is_done(reached)))
                if ends or self._batch.changes or monotonic() - self._committed_at > IDLE_COMMIT_S:
                    self._commit()
                if ends:
                    return
                self._check_withheld()

    def _check_withheld(self) -> None:
        """Raises `SinkError` ``sink_refused`` if the stream has told nothing of a table for long, and is not to.

        A copy whose key nobody tells rows by is made anew if the front describes another one by now.
        """
        if not self._state.withheld:
            self._withheld_since = None
        elif self._withheld_since is None:
            _log.warning("waiting for the source to tell of a table again", tables=", ".join(self._state.withheld))
            self._withheld_since = monotonic()
        elif monotonic() - self._withheld_since >= self._shard_wait_s:
            for table in self._state.withheld:
                described = self._describe(table)
                check_described(described, table)
                if self._is_outdated(table, self._state) and tuple(described.primary_key) != self._tables[table].key:
                    if not self._follows_schemas:
                        raise _changed(table, kinds_of(described.columns))
                    self._state = self._made_anew(described, self._state)
            self._withheld_since = monotonic()

    def _take(self, event: StreamEvent) -> None:
        """Adds an event to what is to be committed."""
        state = self._state
        if event.kind == "transaction":
            for change in event.changes:
                state = self._change(change, event, state)
        elif event.kind != "watermark":  # unreadable, or a kind that this version does not know
            state = self._voided(state, "*")
        token = str(Vector.parse_known(state.token)[0].merge(Vector.parse_known(event.token)[0]))
        self._state = replace(state, checkpoint=event.checkpoint or state.checkpoint, token=token)
        if len(self._batch.changes) >= CHANGES_MAX or monotonic() - self._committed_at > IDLE_COMMIT_S:
            self._commit()

    def _change(self, change: StreamChange, event: StreamEvent, state: SinkState) -> SinkState:
        token = event.token
        if change.kind == "schema":
            return self._described(change, event.shard, state)
        if change.kind == "backfill":
            return state
        table = self._tables.get(change.table)
        if change.kind != "row":
            return self._voided(state, change.table if change.kind == "void" else "*")
        if table is None or event.shard in state.copies[table.name].others:
            return state
        if not table.has_key(change.key, change.row):
            return state.with_told(table.name, event.shard, ())
        if change.op == "void" or (change.op == "value" and change.row is None):
            return self._row_read(table, change, token, state)
        number = state.copies[table.name].number
        self._batch.add(table, change.key, token, change.row if change.op == "value" else None, number)
        return state

    def _row_read(self, table: CopyTable, change: StreamChange, token: str, state: SinkState) -> SinkState:
        """Of a row that changed to what the log has not: as it is at or past the event.

        A collation finds a row by another spelling: that one has another key by then, which its own event tells.
        """
        key = [_plain(each) for each in change.key]
        demanded = Vector.parse_known(token)[0].merge(Vector.parse_known(state.token)[0])
        try:
            row = patiently(partial(self._client.session(str(demanded)).get_row, self._keyspace, table.name, *key))
        except HistoryLost:  # the epoch that follows in the stream voids all
            return state
        value = row.value if row.found else None
        if value is not None and [value.get(name) for name in table.key] != [*change.key]:
            value = None
        self._batch.add(table, change.key, token, value, state.copies[table.name].number)
        return state

    def _voided(self, state: SinkState, table: str) -> SinkState:
        for name in self._wanted:
            if table in ("*", "", name):
                state = state.with_due(name)
        return state

    def _described(self, change: StreamChange, shard: str, state: SinkState) -> SinkState:
        """A description is said again and again. One of other columns is a change of the schema."""
        table = self._tables.get(change.table)
        if table is None:
            return state
        withheld_by = {*state.copies[table.name].withheld_by}
        if not change.cacheable:  # for now, as in a DDL, or for good
            return state.with_withheld(table.name, withheld_by | {shard})
        if shard in withheld_by:
            state = state.with_withheld(table.name, withheld_by - {shard})
        told, told_key = kinds_of(change.columns), tuple(change.primary_key)
        if told_key == state.copies[table.name].others.get(shard) and not (
            self._is_outdated(table.name, state) and tuple(self._describe(table.name).primary_key) == told_key
        ):
            return state  # not yet the one that the front has described
        has_same_key = told_key == table.key
        if has_same_key:
            state = state.with_told(table.name, shard, told_key)
        # A copy that is not made anew has columns of whatever types its owner likes: each value is looked at.
        is_same = told == table.kinds if self._follows_schemas else told.keys() == table.kinds.keys()
        if is_same and has_same_key:
            return state
        if not self._follows_schemas or not told:
            if told and has_same_key:
                return self._with_columns(table, told, state)
            raise _changed(table.name, told)
        columns = [DescribedColumn(column.name, column.kind, column.sql_type) for column in change.columns]
        described = DescriptionAnswer(table.name, columns, change.primary_key, change.cacheable)
        return self._made_anew(described, state).with_told(table.name, shard, told_key)

    def _is_outdated(self, table: str, state: SinkState) -> bool:
        """Whether no shard tells rows by the copy's key: the stream is behind what the front described, or past it.

        A front keeps a description for a while, and may have it of an owner that is behind.
        """
        return self._shards <= state.copies[table].others.keys()

    def _describe(self, table: str) -> DescriptionAnswer:
        return patiently(partial(self._client.describe, self._keyspace, table))

    def _with_columns(self, table: CopyTable, told: dict[str, str], state: SinkState) -> SinkState:
        """Columns that the copy has, and only now the source: without values until the table is read.

        None is left out again: another shard may have it still, or already.
        """
        check_columns(table.table, table.name, [*told])
        copy = self._tables[table.name] = replace(table, kinds={**table.kinds, **told})
        state = state.with_kinds(table.name, copy.kinds)
        return state if told.keys() <= table.kinds.keys() else state.with_due(table.name)

    def _made_anew(self, described: DescriptionAnswer, state: SinkState) -> SinkState:
        """Another table in the place of the copy. That it is to be read is committed first: DDL can't be undone.

        So changes that came before are written, too; those of this event come again if it is killed now.
        """
        before = self._tables[described.table]
        self._batch.changes = [each for each in self._batch.changes if each[0].name != described.table]
        check_described(described, described.table)
        self._state = self._state.with_due(described.table)
        self._commit()
        state = replace(state, version=self._state.version)
        drop_table(self._engine, described)
        self._metadata.remove(before.table)
        copy = self._tables[described.table] = open_table(self._engine, self._metadata, described)
        _log.info("made the copy of a table anew", table=described.table, columns=len(described.columns))
        state = state.with_kinds(described.table, copy.kinds).with_key(described.table, copy.key, self._shards)
        return state.with_due(described.table)

    def _commit(self) -> None:
        with self._engine.begin() as connection:
            self._batch.write(connection)
            self._state = self._states.save(connection, self._state)
        self._batch, self._committed_at = Batch(), monotonic()

    def _read_due(self) -> None:
        """Reads the tables that are due side by side, page by page, each from where it was.

        Pages come in threads, and are written here: one transaction has a page, and where its table's reading is.
        """
        waiting = self._state.due
        reading: dict[Future[Page], tuple[CopyTable, Session]] = {}
        with ThreadPoolExecutor(max(1, self._readers), thread_name_prefix="freshet-sink") as threads:

            def ask(table: CopyTable, session: Session) -> None:
                page = self._state.copies[table.name].page
                find = partial(session.find, self._keyspace, table.name, limit=PAGE_ROWS, page=page)
                reading[threads.submit(_again, find)] = table, session

            while waiting or reading:
                while waiting and len(reading) < max(1, self._readers):
                    table = self._tables[waiting.pop(0)]
                    goes_on = bool(self._state.copies[table.name].page)
                    _log.info("reading a table", table=table.name, goes_on=goes_on)
                    ask(table, self._client.session(self._state.token))
                for each in wait(reading, return_when=FIRST_COMPLETED).done:
                    table, session = reading.pop(each)
                    if self._write_page(table, each.result()):
                        ask(table, session)

    def _write_page(self, table: CopyTable, page: Page) -> bool:
        """Writes a page of a table's reading; whether more of it follows."""
        before = self._state.copies[table.name]
        number, copying = before.number, msgspec.structs.replace(before, page=page.page, is_due=bool(page.page))
        with self._engine.begin() as connection:
            write_page(connection, table, page.rows, number)
            if not copying.is_due:
                remove_unread(connection, table, number)
            self._state = self._states.save(connection, self._state.with_copy(table.name, copying))
        return copying.is_due


def _again(read: Callable[[], Answer]) -> Answer:
    """A read whose session may hold a history that is lost: it has the new one then."""
    try:
        return patiently(read)
    except HistoryLost:
        return patiently(read)


def _changed(table: str, told: Iterable[str]) -> SinkError:
    """``told``: the columns that the source has now."""
    return SinkError(
        f"the source describes {table} anew: {', '.join(told) or 'it is gone'}",
        hint="leave it out, or drop the copy and start again; --follow-schemas makes a copy anew",
        code="sink_schema_changed",
    )


def _plain(value: Any) -> Any:
    """A value of a key as a client names it."""
    return b64decode(value["base64"]) if isinstance(value, Mapping) else value
