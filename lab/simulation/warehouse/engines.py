"""Engines that ask the Thrift front in place of the metastore: the product's listener, relay and answers.

What an engine is shown without a list and an id must be as of its call or later, whoever has changed the catalog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from lab.simulation.engine import Outcome
from lab.simulation.kernel.fronts import LOOPBACK
from lab.simulation.warehouse import judging, thrift
from lab.simulation.warehouse.changing import NAMES, VALUES
from lab.simulation.warehouse.judging import Answer, Listed
from lab.simulation.warehouse.metastore import CATALOG, State, TableTruth, Values
from lab.simulation.warehouse.parts import FRONT
from lab.simulation.warehouse.serving import LATENCY_S, MetastoreServer, path_of
from lab.simulation.warehouse.transacting import Transacting
from serving.http.front import Front
from serving.thrift.answering import Outcome as Answered
from serving.thrift.answering import Session
from serving.thrift.listener import ListenerSettings, ThriftListener
from serving.thrift.messages import Head, head_of
from stream.sources.hive.objects import plain_struct
from stream.sources.hive.structs import ThriftError, decode_struct

ENGINES_GO_ON: Final = "engines are shown nothing older"
"""Than their list counts, than their call if it brings no list and id, and than what they were shown before."""
ENGINE_PORT: Final = 9_183
BEHIND_PORT: Final = 9_283
METASTORE: Final = "metastore"
ENGINES: Final = 2
GIVES_UP_S: Final = 30.0
WAYS_OF_ENGINES: Final = 4
"""What an engine may ask: a table, its partitions, their names, or some of them."""


class Reply(NamedTuple):
    """What an engine got: the fields of the result, and whether the cache has given them."""

    result: dict[int, Any]
    from_cache: bool


class Connection(asyncio.Protocol):
    """An engine's end: one message after the other is awaited."""

    def __init__(self) -> None:
        self._data = b""
        self._message: asyncio.Future[bytes] | None = None
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """It can be used."""
        self.transport = transport

    async def call(self, body: bytes) -> bytes:
        """The message that comes next. Raises ``ConnectionResetError``."""
        self._data, self._message = b"", asyncio.get_running_loop().create_future()
        self.transport.write(body)
        return await self._message

    def data_received(self, data: bytes) -> None:
        """A piece."""
        self._data += data
        if self._message is not None and not self._message.done() and is_whole(self._data):
            self._message.set_result(self._data)

    def connection_lost(self, _: Exception | None) -> None:
        """The end."""
        if self._message is not None and not self._message.done():
            self._message.set_exception(ConnectionResetError("the connection has ended"))


def is_whole(data: bytes) -> bool:
    """Whether this is a message."""
    head = head_of(data)
    if head is None:
        return False
    try:
        decode_struct(data[head.size :])
    except ThriftError:
        return False
    return True


class Behind(asyncio.Protocol):
    """A metastore's end of a connection of the front's. Answers as of some moment after the call."""

    def __init__(self, server: MetastoreServer) -> None:
        self._server = server
        self._life = server.life
        self._data = b""
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        """It is refused while the metastore is down."""
        self._transport = transport
        if self._server.down:
            transport.close()

    def data_received(self, data: bytes) -> None:
        """A piece of a call."""
        self._data += data
        if is_whole(self._data):
            takes_s = self._server.slow_s or LATENCY_S * self._server.kernel.rng.random()
            asyncio.get_running_loop().call_later(takes_s, self._answer, self._data)
            self._data = b""

    def _answer(self, call: bytes) -> None:
        if self._server.down or self._server.life != self._life:
            self._transport.close()
        else:
            self._transport.write(self._server.answer(call))


class Engine:
    """An engine's connection, made anew when it has ended. ``shown``: the state that it has seen last."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.shown = 0
        self.connection: Connection | None = None
        self.busy = False


class Engaging(Transacting):
    """The ops of engines."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self._engines = [Engine(number) for number in range(ENGINES)]
        self._calls = 0
        self._by_cache: set[int] = set()
        """Sequence numbers of the calls that the cache has answered."""
        self._listens = False

    def beside(self, front: Front) -> None:
        """See `WarehouseParts.beside`."""
        listener = ThriftListener(
            front, CATALOG, ListenerSettings(LOOPBACK, ENGINE_PORT, [(LOOPBACK, BEHIND_PORT)], CATALOG)
        )
        answers = listener._answers
        real = answers.answer

        async def noted(head: Head, arguments: bytes, session: Session) -> Answered:
            found = await real(head, arguments, session)
            if found.reply is not None:
                self._by_cache.add(head.sequence)
            return found

        vars_of: Any = answers
        vars_of.answer = noted
        self.kernel.run_task(FRONT, listener.start)
        if not self._listens:
            self._listens = True
            self.kernel.run_task(METASTORE, self._listen_behind)

    async def _listen_behind(self) -> None:
        await asyncio.get_running_loop().create_server(partial(Behind, self.server), LOOPBACK, BEHIND_PORT)

    def op_engine(self, number: int, name: int, how: int, way: int, more: int, patience: int) -> None:
        """An engine asks for a table or its partitions, with no list, with one, or with one and an id."""
        engine, table = self._engines[number % ENGINES], NAMES[name % len(NAMES)]
        listed = self.listed(table) if how % 3 else None
        if engine.busy:
            return
        engine.busy = True

        def work() -> None:
            self._read(engine, table, listed, bool(how % 3 == 2), way % WAYS_OF_ENGINES, more)
            engine.busy = False

        self.do(work, patience)

    def _read(self, engine: Engine, name: str, listed: Listed | None, with_id: bool, way: int, more: int) -> None:
        names = [VALUES[more % len(VALUES)], VALUES[(more + 1) % len(VALUES)]]
        method, request = _request(name, listed, way, names, with_id=with_id)
        asked, came = len(self.warehouse.states) - 1, self.kernel.now
        try:
            reply = self._call(engine, method, request)
        except (OSError, TimeoutError) as error:
            self.outcome.answers["engine: no answer"] += 1
            self.say(f"engine {engine.number}: {method} of {name}: {type(error).__name__} {error}")
            engine.connection, engine.shown = None, 0  # another connection is another session
            return
        place = "cache" if reply.from_cache else "metastore"
        self.outcome.answers[f"engine: from the {place}"] += 1
        what, is_of = _shown(name, reply.result, way, names)
        is_by_list = listed is not None and with_id
        demanded = self.judge.demanded_by(listed) if is_by_list and listed is not None else asked
        answer = Answer(what, is_of, place, "fresh", f"asked at {came}", name)
        self.say(f"engine {engine.number}: {what} from the {place}, asked at state {asked} by {listed}")
        found = self.judge.first_of(answer, max(demanded, engine.shown), self.kernel.now, listed)
        if found is None:
            now = self.warehouse.states[demanded].tables.get(name)
            self.complain(
                ENGINES_GO_ON,
                f"engine {engine.number} was shown {what} by the {place}, as of state {demanded} or later: {now}",
            )
        engine.shown = max(engine.shown, found or 0)

    def _call(self, engine: Engine, method: str, request: thrift.Struct) -> Reply:
        """A call of a thread, whose process's event loop talks with the front. Raises ``OSError``, ``TimeoutError``."""
        self._calls += 1
        sequence, loop = self._calls, self.kernel.loop
        body = thrift.message(method, thrift.CALL, sequence, {1: ("rec", request)})
        begun: list[asyncio.Task[bytes]] = []
        loop.call_soon_threadsafe(lambda: begun.append(loop.create_task(_exchange(engine, body))))
        self.kernel.wait(lambda: bool(begun) and begun[0].done())
        message = begun[0].result()
        head = head_of(message)
        assert head is not None
        assert head.sequence == sequence, "the reply to another call"
        if head.kind != thrift.REPLY:
            raise ConnectionAbortedError("the call could not be made")
        return Reply(dict(decode_struct(message[head.size :])), sequence in self._by_cache)


async def _exchange(engine: Engine, body: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(GIVES_UP_S):
        connection = engine.connection
        if connection is None or connection.transport.is_closing():
            engine.shown = 0
            _, connection = await loop.create_connection(Connection, LOOPBACK, ENGINE_PORT)
            engine.connection = connection
        return await connection.call(body)


def _request(
    name: str, listed: Listed | None, way: int, names: Sequence[Values], *, with_id: bool
) -> tuple[str, thrift.Struct]:
    """The call, and its request."""
    db, _, table = name.partition(".")
    text: thrift.Typed | None = ("str", listed.text) if listed is not None and listed.text else None
    table_id: thrift.Typed = ("i64", listed.table_id if listed is not None and with_id else -1)
    if way == 0:
        method, at, found = "get_table_req", (6, 11), {1: ("str", db), 2: ("str", table), 4: ("str", CATALOG)}
    elif way == 3:
        method, at, found = "get_partitions_by_names_req", (8, 10), {1: ("str", db), 2: ("str", table)}
        found[3] = ("lst", ("str", [path_of(values) for values in names]))  # type: ignore[assignment]
    else:
        method = ("get_partitions_req", "fetch_partition_names_req")[way - 1]
        at, found = (5, 6), {1: ("str", CATALOG), 2: ("str", db), 3: ("str", table), 4: ("i16", -1)}  # type: ignore[dict-item]
    request: thrift.Struct = dict(found)
    if text is not None:
        request[at[0]] = text
    return method, request | {at[1]: table_id}


def _shown(name: str, result: dict[int, Any], way: int, names: Sequence[Values]) -> tuple[str, Any]:
    """What a result shows, in words, and whether it is so in a state."""
    found = result.get(0, (0, None))[1]
    if way == 0:
        image = None if found is None else plain_struct(found[1][1], "Table")
        table_id = image["id"] if image is not None else 0
        parts = {key: image.get(key) for key in ("id", "parameters")} if image is not None else None
        return f"{name} as {parts}", judging.is_table(name, table_id, image)
    values = found if way == 2 else found[1][1] if found is not None else None
    elements = values.values if values is not None else []
    if way == 2:
        paths = [each.decode() for each in elements]

        def are_names(state: State) -> bool:
            table = state.tables.get(name)
            return sorted(paths) == sorted(map(path_of, table.partitions if table is not None else ()))

        return f"partitions {paths} of {name}", are_names
    images = [plain_struct(each, "Partition") for each in elements]
    shown: dict[Values, Any] = {(*image["values"],): image for image in images}

    def selected(table: TableTruth) -> Sequence[Values]:
        return [values for values in (names if way == 3 else table.partitions) if values in table.partitions]

    versions = {each: (image.get("parameters") or {}).get("version") for each, image in shown.items()}
    return f"partitions {versions} of {name}", judging.are_partitions(name, 0, shown, len(shown), selected)
