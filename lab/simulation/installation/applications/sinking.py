"""An application keeps a copy of its tables in a database of its own: ``freshet sink``, on SQLite in memory.

The sink is killed anywhere, also between two statements of one transaction, and is started again with the same words.
At each commit, unless the table is still to be read, every row of the copy is at or past the token that is committed
with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from lab.simulation.engine import Outcome
from lab.simulation.installation.applications.giving import Giving
from lab.simulation.installation.committed import History, Image, RowName
from lab.simulation.installation.following.readers import LOST
from lab.simulation.installation.processes import SHARD
from lab.simulation.installation.writing import ACCOUNTS, KEYSPACE, ORDERS, SimulatedTable, image_of
from lab.simulation.kernel.fronts import blocking_client
from serving.client.client import FreshetClient
from serving.client.errors import ClientError
from serving.sink.errors import SinkError
from serving.sink.running import Sink
from serving.sink.state import Copying
from tokens import Vector

COPIES: Final = "the copy is the table"
SINK: Final = "sink"
COLUMNS: Final = {ACCOUNTS.name: ("id", "version"), ORDERS.name: ("customer", "number", "version", "placed", "twice")}
STATEMENTS_MAX: Final = 12
"""Of the statements that a sink dies within."""


class _Killed(Exception):
    """The sink's process ends between two statements."""


class Sinking(Giving):
    """The ops of a sink."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self._copy: sa.Engine | None = None
        self._dies_in = 0
        """Statements until the sink dies; 0: it lives."""

    def op_sink(self, pause: int) -> None:
        """A sink is started, where the last one ended; or it is killed."""
        if self.kernel.is_running(SINK):
            self.say("the sink is killed")
            self.kernel.kill(SINK)
        else:
            self.say("the sink starts")
            self._start_sink()
        self.pause(pause)

    def op_sink_dies(self, statements: int, pause: int) -> None:
        """The sink dies within some statements, and is started again."""
        self._dies_in = 1 + statements % STATEMENTS_MAX
        self.pause(pause)

    @property
    def _copied(self) -> Sequence[SimulatedTable]:
        return (ACCOUNTS, ORDERS) if self.wide else (ACCOUNTS,)

    def _start_sink(self) -> None:
        engine = self._copy = self._copy or self._empty_copy()

        def work() -> None:
            client = blocking_client(self.kernel, self._ports(), **self.credentials.shown)
            while True:
                try:
                    self._run_sink(client, engine)
                except _Killed:  # also while it is told to begin anew
                    self.say("the sink dies")
                self._sleep(0.5)

        self.kernel.spawn(SINK, work)

    def _run_sink(self, client: FreshetClient, engine: sa.Engine) -> None:
        """Until it ends with an error."""
        tables = [table.name for table in self._copied]
        try:
            Sink(client, KEYSPACE, engine, tables, [SHARD], follows_schemas=not self.lean).run()
        except (ClientError, SinkError) as error:
            self._count(f"sink: {error.code}")
            self.say(f"the sink ends: {error.code}: {error}")
            if error.code in LOST:  # as docs/operating/sink.md has it
                self._forget_checkpoint(engine)

    def _forget_checkpoint(self, engine: sa.Engine) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("DELETE FROM freshet_sink")

    def _empty_copy(self) -> sa.Engine:
        engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
        sa.event.listen(engine, "before_cursor_execute", lambda *_: self._statement())
        sa.event.listen(engine, "commit", lambda connection: self._committing(connection.connection.cursor()))
        return engine

    def _statement(self) -> None:
        if self._dies_in:
            self._dies_in -= 1
            if not self._dies_in:
                raise _Killed

    def _committing(self, cursor: Any) -> None:
        """Judges what is about to be committed."""
        if problem := self._problem(cursor):
            self.complain(COPIES, f"the sink commits a copy that is older than its token: {problem}")

    def _problem(self, cursor: Any) -> str:
        self.record_commits()
        found = self._read_copy(cursor)
        if found is None or self.record.is_ambiguous:
            return ""
        token, rows = found
        epoch, position = Vector.parse(token).get(SHARD) or (0, None)
        if position is None:
            return ""
        gtid = str(position).partition("/")[2]
        history, *later = self.record.histories[self.record.of_commit(epoch, gtid) :]
        since = history.by_gtid.get(gtid)
        return "" if since is None else _older(history, later, since, {**self._rows(history), **rows})

    def _read_copy(self, cursor: Any) -> tuple[str, dict[RowName, Image]] | None:
        """The token and the rows; None if a table is still to be read."""
        tables = {name for (name,) in cursor.execute("SELECT name FROM sqlite_master")}
        if not {"freshet_sink", *map(_bare, self._copied)} <= tables:
            return None
        states = cursor.execute("SELECT token, copies FROM freshet_sink").fetchall()
        if not states:
            return None
        [(token, text)] = states
        copies = msgspec.json.decode(text, type=dict[str, Copying])
        if not copies or any(each.is_due for each in copies.values()):
            return None
        rows: dict[RowName, Image] = {}
        for table in self._copied:
            columns = COLUMNS[table.name]
            for row in cursor.execute(f"SELECT {', '.join(columns)} FROM {_bare(table)}").fetchall():
                values = dict(zip(columns, row, strict=True))
                rows[table.name, (values[table.columns[-1]],)] = image_of(values)
        return token, rows

    def check_copied(self, within_s: float) -> str:
        """What the copy lacks some time after the last commit, if there is one; "" if it is the table."""
        if self._copy is None:
            return ""
        engine, self._dies_in = self._copy, 0
        if not self.kernel.is_running(SINK):
            self._start_sink()
        self.run_until(lambda: not self._lacks(engine), within_s)
        return self._lacks(engine)

    def _lacks(self, engine: sa.Engine) -> str:
        self.record_commits()
        with engine.connect() as connection:
            found = self._read_copy(connection.connection.cursor())
        if found is None:
            return "the copy is still to be read"
        history, rows = self.record.histories[-1], found[1]
        for row in {**rows, **self._rows(history)}:
            true = history.image_at(row, history.end)
            if rows.get(row) != true:
                return f"{row} of the copy is {rows.get(row)}, and not {true}"
        return ""

    def _rows(self, history: History) -> dict[RowName, Image]:
        """The rows that the tables have ever had."""
        names = {table.name for table in self._copied}
        return {row: None for row in history.versions if row[0] in names}


def _bare(table: SimulatedTable) -> str:
    return table.name.partition(".")[2]


def _older(history: History, later: Sequence[History], since: int, rows: Mapping[RowName, Image]) -> str:
    """A row of the copy that it has not had at or past a commit; "" if there is none.

    It may have had it in a ``later`` history: rows are read at the source, which the stream tells of another one later.
    """
    for row, image in rows.items():
        may_be = _images(history, row, since)
        for each in later:
            may_be += _images(each, row, min(since, each.begins_at))
        if image not in may_be:
            return f"{row} is {image}, and was {history.image_at(row, since)} at commit {since}"
    return ""


def _images(history: History, row: RowName, since: int) -> list[Image]:
    return [history.image_at(row, since), *(each for at, each in history.versions.get(row, []) if at > since)]
