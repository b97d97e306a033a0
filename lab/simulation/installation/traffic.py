"""Sessions: threads of an application that write to the database and read through fronts. Every answer is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import httpx2
import pymysql

from lab.simulation.engine import Outcome
from lab.simulation.installation.committed import Image
from lab.simulation.installation.judging import Answer, Asked, SessionJudge
from lab.simulation.installation.operating.guarding import DENIED, NO_STRANGERS
from lab.simulation.installation.parts import FRONTS, Installation
from lab.simulation.installation.processes import SHARD
from lab.simulation.installation.writing import (
    ACCOUNTS,
    CODED_SLOTS,
    FIRST_OLD_ROW,
    JOURNAL,
    KEYSPACE,
    OLD_ROWS,
    ROWS,
    SESSIONS,
    SLOTS,
    STOCK,
    Slot,
    image_of,
    noted,
)
from lab.simulation.kernel.fronts import FrontTransport, async_client, blocking_client
from lab.simulation.whole_processes.run import CLIENT
from lab.simulation.whole_processes.words import EXPLAINS
from serving.client.aio import AsyncClient, AsyncSession
from serving.client.answers import Row
from serving.client.client import Session
from serving.client.errors import ClientError, HistoryLost
from serving.client.wire import location_request, read_epochs
from tokens import Vector

PATIENCE_S: Final = (0.0, 0.02, 0.3, 60.0)
"""How long the history waits for what a session does, before it goes on to the next op."""
TIMEOUT_S: Final = 20.0
STALENESS_MS: Final = (0, 300, 1_500, 20_000)
WRITERS_ZONES: Final = ("+05:30", "-08:00")
"""The time zones of the sessions' connections in a wide history."""


class Traffic(Installation):
    """The ops of sessions."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self.under_way = 0
        """Reads and writes that have not ended."""
        self._attempts = 0
        self._names = 0
        self._watches = 0
        self._sessions: dict[int, tuple[str, Session]] = {}
        self._held: dict[Slot, tuple[str, Image]] = {}
        """Row → the tag and the image of the answer that a reader without a client library has kept."""
        self._async: AsyncClient | None = None
        self._async_session: AsyncSession

    def _session(self, number: int) -> tuple[str, Session]:
        """A session and its name for the judge."""
        if number not in self._sessions:
            self._sessions[number] = self._new_session("")
        return self._sessions[number]

    def _new_session(self, token: str) -> tuple[str, Session]:
        self._names += 1
        routes = self.placed and self._names % 2 == 0
        return str(self._names), blocking_client(
            self.kernel, self._ports(), route=routes, **self.credentials.shown
        ).session(token or None)

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
        number, slot = session % SESSIONS, self.slot(row)
        truth, journal = self.truths[slot.table.keyspace], STOCK if slot.table is STOCK else ACCOUNTS
        name, client = self._session(number)
        self._attempts += 1
        attempt = self._attempts

        def write() -> None:
            truth.judge.attempts(name)
            try:
                connection = client.wrap(self.driver.connect(**truth.settings.pymysql_arguments()), truth.shard)
                with connection.cursor() as cursor:
                    if self.wide:
                        cursor.execute(f"SET time_zone = '{WRITERS_ZONES[number]}'")
                    if what % 4:
                        cursor.execute(slot.table.put, slot.table.values(slot.row, attempt))
                    else:
                        cursor.execute(slot.table.delete, slot.table.key(slot.row))
                    cursor.execute(journal.put, (JOURNAL + number, attempt))
                    for statement in noted(attempt) if self.keyless and truth.shard == SHARD else ():
                        cursor.execute(statement)
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
            truth.judge.attempted(name, str(attempt), self.kernel.now)
            self.say(f"session {name}: {'writes' if what % 4 else 'deletes'} {slot.text} as {attempt}: {ended}")

        self._do(write, patience)

    def op_read(self, session: int, row: int, batch: int, patience: int) -> None:
        """A session reads a row, or a few rows at once."""
        name, client = self._session(session % SESSIONS)
        first, aliased = self.slot(row), batch % 3 == 2
        slots = [first] if batch % 3 else [each for each in self.slots if each.table.keyspace == first.table.keyspace]
        self._do(lambda: self.read(name, client, slots, aliased=aliased), patience)

    @property
    def slots(self) -> Sequence[Slot]:
        """The rows of this history."""
        of_all = CODED_SLOTS if self.rekeyed else ()
        return (*SLOTS[:ROWS], *of_all, *(SLOTS[ROWS:] if self.wide else ()))

    def slot(self, row: int) -> Slot:
        """A row by any number."""
        return self.slots[row % len(self.slots)]

    def read(
        self,
        name: str,
        client: Session,
        slots: Sequence[Slot],
        bound_ms: int | None = None,
        *,
        aliased: bool = False,
    ) -> list[Row]:
        """Reads rows of one keyspace, and has the answers judged. Returns them; none if the read failed.

        ``bound_ms``: of a bounded staleness, for one row. ``aliased``: with another spelling of the key.
        """
        table = slots[0].table
        asked = self._judge_of(slots).asked(name, self.kernel.now, None if bound_ms is None else bound_ms / 1000)
        try:
            if len(slots) == 1:
                key = table.key(slots[0].row, aliased=aliased)
                rows = [client.get_row(table.keyspace, table.name, *key, max_staleness_ms=bound_ms)]
            else:
                rows = client.get_rows(table.keyspace, [(each.table.name, each.table.key(each.row)) for each in slots])
        except ClientError as error:
            self._refused(name, slots, error)
            return []
        self._answered(name, asked, slots, rows)
        return rows

    def op_bounded(self, session: int, row: int, staleness: int, patience: int) -> None:
        """A session reads a row that must hold all that was committed until a while ago."""
        name, client = self._session(session % SESSIONS)
        bound_ms = STALENESS_MS[staleness % len(STALENESS_MS)]
        self._do(lambda: self.read(name, client, [self.slot(row)], bound_ms), patience)

    def op_await(self, row: int, has_session: int, patience: int) -> None:
        """A task of an asyncio application reads a row, in its session (``has_session`` 1) or without one.

        2: without one, and an image of before a void will do.
        """
        name, slot, done = "of tasks" if has_session % 2 else "", self.slot(row), list[bool]()
        table = slot.table
        if self._async is None:
            self._async = async_client(self.kernel, self._ports(), **self.credentials.shown)
            self._async_session = self._async.session()
        client, session = self._async, self._async_session
        self.under_way += 1

        async def read() -> None:
            asked = self._judge_of([slot]).asked(name, self.kernel.now)
            try:
                key = table.key(slot.row)
                if has_session % 2:
                    found = await session.get_row(table.keyspace, table.name, *key)
                else:
                    found = await client.get_row(table.keyspace, table.name, *key, last_known=has_session % 3 == 2)
            except ClientError as error:
                self._refused(name, [slot], error)
            else:
                self._answered(name, asked, [slot], [found])
            self.under_way -= 1
            done.append(True)

        self.kernel.run_task(CLIENT, read)
        self.run_until(lambda: bool(done), PATIENCE_S[patience % len(PATIENCE_S)])

    def _judge_of(self, slots: Sequence[Slot]) -> SessionJudge:
        return self.truths[slots[0].table.keyspace].judge

    def _refused(self, name: str, slots: Sequence[Slot], error: ClientError) -> None:
        self._count(f"refused: {error.code}")
        if error.code in DENIED:
            self.complain(NO_STRANGERS, f"session {name or 'none'} may read, and is told {error.code}: {error}")
        read = ", ".join(slot.text for slot in slots)
        self.say(f"session {name or 'none'}: reading {read}: {error.code}: {error}")
        judge = self._judge_of(slots)
        told, _ = Vector.parse_known(error.token) if isinstance(error, HistoryLost) else (Vector({}), ())
        component = told.get(f"{slots[0].table.keyspace}/0")
        judge.refused(name, self.kernel.now, error.code, component.epoch if component is not None else 0)
        if len(slots) > 1:
            judge.may_have_seen(name)

    def _answered(self, name: str, asked: Asked, slots: Sequence[Slot], rows: Sequence[Row]) -> None:
        self.record_commits()
        answers = []
        for slot, row in zip(slots, rows, strict=True):
            kind = f"{row.freshness} from the {row.served_from}"
            self._count(kind)
            self.say(f"session {name or 'none'}: {slot.text} is {row.value}, {kind}: {row.why}")
            answers.append(Answer(slot.name, image_of(row.value), row.served_from, row.freshness, row.why))
        self._judge_of(slots).answered(name, asked, self.kernel.now, answers)

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
                for truth in self.truths.values():
                    truth.judge.handed_over(self._sessions[number][0], name, self.kernel.now)

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
        self._watches += 1
        this = self._watches

        def epochs() -> Iterator[int]:
            for port in ports:
                client = blocking_client(self.kernel, [port], **self.credentials.shown)
                for partition in range(self.partitions):
                    found = read_epochs(*client.send(location_request(KEYSPACE, partition, {})))
                    yield found.get(SHARD, -1)

        def watch() -> None:
            while self.record.is_ambiguous and this == self._watches:  # else somebody watches for a later one
                with suppress(ClientError):
                    if min(epochs()) >= wanted and this == self._watches:
                        self.record.is_ambiguous = False
                self.kernel.wait(lambda: False, 0.5)

        self.kernel.spawn(CLIENT, watch)

    def _count(self, answer: str) -> None:
        self.outcome.answers[answer] += 1

    def op_again(self, row: int, spelling: int, patience: int) -> None:
        """A reader who has kept the last answer of a row reads it again. ``spelling``: how it names what it holds."""
        slot = self.slot(row)
        if self.wide and row % 2:
            slot = Slot(slot.table, FIRST_OLD_ROW + row % OLD_ROWS)
        transport = FrontTransport(
            self.kernel, lambda: self.kernel.rng.choice(self._ports()), self.credentials.application
        )
        self._do(lambda: self._reread(transport, slot, spelling % 3), patience)

    def _reread(self, transport: FrontTransport, slot: Slot, spelling: int) -> None:
        tag, image = self._held.get(slot, ("", None))
        named = (tag, f'W/{tag}, "other"', '"other"')[spelling] if tag else '"other"'
        key = ",".join(quote(str(value), safe="") for value in slot.table.key(slot.row))
        url = f"http://front/v1/rows/{slot.table.keyspace}/{slot.table.name}/{key}"
        extensions = {"timeout": {"read": TIMEOUT_S}}
        judge = self._judge_of([slot])
        asked = judge.asked("", self.kernel.now)
        try:
            request = httpx2.Request("GET", url, headers={"if-none-match": named}, extensions=extensions)
            response = transport.handle_request(request)
        except (httpx2.HTTPError, OSError):
            return
        status, headers = response.status_code, response.headers
        self._count(f"again {status}")
        self.say(f"a reader who holds {image or 'nothing'} reads {slot.text} again: {status}")
        if status == 304:
            if named == '"other"' or response.content:
                self.complain(EXPLAINS, f"{slot.text} is called unchanged to a reader who holds {named}")
            answer = (image, headers["freshet-served-from"], headers["freshet-freshness"], headers["freshet-why"])
        elif status in (200, 404) and "row" in (found := response.json()):  # else the front knows no such table yet
            image = image_of(found["row"])
            answer = (image, found["served_from"], found["freshness"], found["why"])
            self._held[slot] = headers.get("etag", ""), image
        else:
            return
        self.record_commits()
        judge.answered("", asked, self.kernel.now, [Answer(slot.name, *answer)])
