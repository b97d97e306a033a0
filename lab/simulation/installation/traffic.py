"""Sessions: threads of an application that write to the database and read through fronts. Every answer is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import pymysql

from lab.simulation.engine import Outcome
from lab.simulation.installation.fronts import async_client, blocking_client
from lab.simulation.installation.judging import Answer, Asked
from lab.simulation.installation.parts import CLIENT, FRONTS, Installation
from lab.simulation.installation.processes import KEYSPACE, PRIMARY, SHARD
from lab.simulation.installation.writing import DELETE, JOURNAL, PUT, ROWS, SESSIONS, TABLE, image_of
from serving.client.answers import Row
from serving.client.client import AsyncClient, AsyncSession, Session
from serving.client.errors import ClientError
from serving.client.wire import location_request, read_epochs

PATIENCE_S: Final = (0.0, 0.02, 0.3, 60.0)
"""How long the history waits for what a session does, before it goes on to the next op."""
STALENESS_MS: Final = (0, 300, 1_500, 20_000)


class Traffic(Installation):
    """The ops of sessions."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self.under_way = 0
        """Reads and writes that have not ended."""
        self._attempts = 0
        self._names = 0
        self._sessions: dict[int, tuple[str, Session]] = {}
        self._async: AsyncClient | None = None
        self._async_session: AsyncSession

    def _session(self, number: int) -> tuple[str, Session]:
        """A session and its name for the judge."""
        if number not in self._sessions:
            self._sessions[number] = self._new_session("")
        return self._sessions[number]

    def _new_session(self, token: str) -> tuple[str, Session]:
        self._names += 1
        return str(self._names), blocking_client(self.kernel, self._ports()).session(token or None)

    def _ports(self) -> list[int]:
        """Of the fronts behind one name."""
        return [port for name, port in FRONTS.items() if name in self.wanted]

    def _do(self, work: Callable[[], object], patience: int) -> None:
        """Runs ``work`` in a thread of the application, and waits for it for a while."""
        self.under_way += 1

        def worked() -> None:
            work()
            self.under_way -= 1

        thread = self.kernel.spawn(CLIENT, worked)
        self.run_until(lambda: thread.done, PATIENCE_S[patience % len(PATIENCE_S)])

    def op_write(self, session: int, row: int, what: int, patience: int) -> None:
        """A session writes a row, or deletes it, and commits."""
        number, slot = session % SESSIONS, row % ROWS
        name, client = self._session(number)
        self._attempts += 1
        attempt = self._attempts

        def write() -> None:
            self.judge.attempts(name)
            try:
                connection = client.wrap(self.driver.connect(**PRIMARY.pymysql_arguments()), SHARD)
                with connection.cursor() as cursor:
                    if what % 4:
                        cursor.execute(PUT, (slot, attempt))
                    else:
                        cursor.execute(DELETE, (slot,))
                    cursor.execute(PUT, (JOURNAL + number, attempt))
                if what % 8 == 7:
                    connection.rollback()
                else:
                    connection.commit()
                connection.close()
                ended = "committed" if what % 8 != 7 else "rolled back"
            except (pymysql.err.Error, OSError) as error:
                ended = f"failed: {error}"
            self._count(f"write {ended.partition(':')[0]}")
            self.record_commits()
            self.judge.attempted(name, str(attempt), self.kernel.now)
            self.say(f"session {name}: {'writes' if what % 4 else 'deletes'} row {slot} as {attempt}: {ended}")

        self._do(write, patience)

    def op_read(self, session: int, row: int, batch: int, patience: int) -> None:
        """A session reads a row, or a few rows at once."""
        name, client = self._session(session % SESSIONS)
        slots = [row % ROWS] if batch % 3 else list(range(ROWS))
        self._do(lambda: self.read(name, client, slots), patience)

    def read(self, name: str, client: Session, slots: Sequence[int], bound_ms: int | None = None) -> list[Row]:
        """Reads rows, and has the answers judged. Returns them; none if the read failed.

        ``bound_ms``: of a bounded staleness, for one row.
        """
        asked = self.judge.asked(name, self.kernel.now, None if bound_ms is None else bound_ms / 1000)
        try:
            if len(slots) == 1:
                rows = [client.get_row(KEYSPACE, TABLE, slots[0], max_staleness_ms=bound_ms)]
            else:
                rows = client.get_rows(KEYSPACE, [(TABLE, (slot,)) for slot in slots])
        except ClientError as error:
            self._refused(name, slots, error)
            return []
        self._answered(name, asked, slots, rows)
        return rows

    def op_bounded(self, session: int, row: int, staleness: int, patience: int) -> None:
        """A session reads a row that must hold all that was committed until a while ago."""
        name, client = self._session(session % SESSIONS)
        bound_ms = STALENESS_MS[staleness % len(STALENESS_MS)]
        self._do(lambda: self.read(name, client, [row % ROWS], bound_ms), patience)

    def op_await(self, row: int, has_session: int, patience: int) -> None:
        """A task of an asyncio application reads a row, in its session or without one."""
        name, slot, done = "of tasks" if has_session % 2 else "", row % ROWS, list[bool]()
        if self._async is None:
            self._async = async_client(self.kernel, self._ports())
            self._async_session = self._async.session()
        reader = self._async_session if has_session % 2 else self._async
        self.under_way += 1

        async def read() -> None:
            asked = self.judge.asked(name, self.kernel.now)
            try:
                found = await reader.get_row(KEYSPACE, TABLE, slot)
            except ClientError as error:
                self._refused(name, [slot], error)
            else:
                self._answered(name, asked, [slot], [found])
            self.under_way -= 1
            done.append(True)

        self.kernel.run_task(CLIENT, read)
        self.run_until(lambda: bool(done), PATIENCE_S[patience % len(PATIENCE_S)])

    def _refused(self, name: str, slots: Sequence[int], error: ClientError) -> None:
        self._count(f"refused: {error.code}")
        self.say(f"session {name or 'none'}: reading {slots}: {error.code}: {error}")
        self.judge.refused(name, self.kernel.now, error.code)

    def _answered(self, name: str, asked: Asked, slots: Sequence[int], rows: Sequence[Row]) -> None:
        self.record_commits()
        answers = []
        for slot, row in zip(slots, rows, strict=True):
            kind = f"{row.freshness} from the {row.served_from}"
            self._count(kind)
            self.say(f"session {name or 'none'}: row {slot} is {row.value}, {kind}: {row.why}")
            answers.append(Answer((TABLE, (slot,)), image_of(row.value), row.served_from, row.freshness, row.why))
        self.judge.answered(name, asked, self.kernel.now, answers)

    def op_session(self, session: int, earlier: int) -> None:
        """A new session takes the place of one, with the token of another, or with none."""
        number = session % SESSIONS
        if earlier % 2 and self._sessions:
            name, client = self._sessions[sorted(self._sessions)[earlier % len(self._sessions)]]

            def take_over() -> None:
                try:
                    token = client.token
                except ClientError:
                    return
                self._sessions[number] = self._new_session(token)
                self.judge.handed_over(self._sessions[number][0], name, self.kernel.now)

            self._do(take_over, 3)
        else:
            self._sessions[number] = self._new_session("")
        self.say(f"session {number} begins anew")

    def has_unplaced_writes(self) -> bool:
        """Whether a session has written before any front told it the shard's epoch."""
        return any(session._unplaced for _, session in self._sessions.values())

    def watch_epochs(self, wanted: int) -> None:
        """Watches, as a reader would, until every partition is in epoch ``wanted`` or a later one."""
        ports = self._ports()

        def epochs() -> Iterator[int]:
            for port in ports:
                client = blocking_client(self.kernel, [port])
                for partition in range(self.partitions):
                    found = read_epochs(*client.send(location_request(KEYSPACE, partition, {})))
                    yield found.get(SHARD, -1)

        def watch() -> None:
            while self.record.is_ambiguous:
                with suppress(ClientError):
                    self.record.is_ambiguous = min(epochs()) < wanted
                self.kernel.wait(lambda: False, 0.5)

        self.kernel.spawn(CLIENT, watch)

    def _count(self, answer: str) -> None:
        self.outcome.answers[answer] += 1
