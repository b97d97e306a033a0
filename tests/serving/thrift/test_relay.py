"""A connection of an engine, between answers that the test sets and a metastore that it plays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from serving.metrics import FrontMetrics
from serving.thrift.answering import PASSED_ON, Answers, Outcome, Session
from serving.thrift.messages import Head, Scanner, head_of, reply
from serving.thrift.metrics import ThriftMetrics
from serving.thrift.relay import Relay, Streams
from stream.sources.hive.rpc.thrift import message, text, texts
from stream.sources.hive.structs import STRING, Struct, encode_struct
from tests.patience import PATIENCE_S

RESULT = encode_struct({0: text("found")})
KNOWN, OTHER = "get_partition_names", "get_all_databases"
"""A call that a cache may answer, and one that it never does."""
CALL = message(KNOWN, 1, {1: text("db"), 2: text("t")})


class Metastore:
    """Plays a metastore: ``peer`` is its end of the connection that was opened last."""

    def __init__(self) -> None:
        self.opened = 0
        self.peer: Streams | None = None
        self.has_peer = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.peer = reader, writer
        self.has_peer.set()

    async def read(self, size: int) -> bytes:
        """The next bytes that arrive."""
        await self.has_peer.wait()
        assert self.peer is not None
        return await self.peer[0].readexactly(size)

    def write(self, data: bytes) -> None:
        """Sends bytes."""
        assert self.peer is not None
        self.peer[1].write(data)


class World:
    """An engine's connection. The cache gives ``outcomes``, one for each call that it is asked; then none."""

    def __init__(self) -> None:
        self.metastore = Metastore()
        self.outcomes: list[Outcome] = []
        self.asked: list[tuple[str, bytes, bool]] = []
        """Calls, what they brought, and whether the session had moved."""
        self.is_away = False
        self.metrics = FrontMetrics()
        self.ended: list[BaseException | None] = []

    async def answer(self, head: Head, arguments: bytes, session: Session) -> Outcome:
        """As `Answers.answer`."""
        self.asked.append((head.name, arguments, session.moved))
        session.moved = False
        return self.outcomes.pop(0) if self.outcomes else PASSED_ON

    async def connect(self) -> Streams:
        """To the metastore."""
        if self.is_away:
            raise ConnectionRefusedError("away")
        return await asyncio.open_connection(*self.address)

    async def open(self, *, answers: bool = True) -> None:
        """Connects the engine."""
        server = await asyncio.start_server(self.metastore.serve, "127.0.0.1", 0)
        self.address = server.sockets[0].getsockname()[:2]
        chosen = cast("Answers", self) if answers else None
        metrics = ThriftMetrics("hive", self.metrics)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await Relay((reader, writer), self.connect, chosen, metrics).run()
            except Exception as error:  # noqa: BLE001 - the test looks at it
                self.ended.append(error)
            else:
                self.ended.append(None)

        front = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.reader, self.writer = await asyncio.open_connection(*front.sockets[0].getsockname()[:2])

    async def reads(self, data: bytes) -> None:
        """The engine gets these bytes next."""
        assert await self.reader.readexactly(len(data)) == data

    async def passes(self, data: bytes, answer: bytes) -> None:
        """The metastore gets bytes that the engine has sent, and the engine its answer."""
        assert await self.metastore.read(len(data)) == data
        self.metastore.write(answer)
        await self.reads(answer)

    def counted(self, call: str, served_from: str) -> float:
        """How many calls were."""
        labels = {"catalog": "hive", "call": call, "served_from": served_from}
        return self.metrics.registry.get_sample_value("freshet_serve_engine_calls_total", labels) or 0


def run(use: Callable[[World], Awaitable[None]], **options: Any) -> None:
    """With an engine that is connected."""

    async def main() -> None:
        world = World()
        await world.open(**options)
        await use(world)
        world.writer.close()

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))


def odd(size: int) -> Struct:
    """Arguments of more than so many bytes."""
    return {1: text("x" * size), 2: texts(["a", "b"])}


def test_calls_and_replies_are_passed_on_byte_by_byte() -> None:
    """However they are cut up, whatever they hold, and over one connection."""

    async def use(world: World) -> None:
        for call in (message(OTHER, 5, odd(9)), message(KNOWN, 6, odd(200_000)), message("no such", -1, {})):
            for at in range(0, len(call), 70_000):
                world.writer.write(call[at : at + 70_000])
                await world.writer.drain()
            await world.passes(call, reply(OTHER, 5, encode_struct(odd(100_000))))
        assert (world.metastore.opened, [name for name, *_ in world.asked]) == (1, [KNOWN])
        assert (world.counted("other", "metastore"), world.counted(KNOWN, "metastore")) == (2, 1)

    run(use)


def test_what_the_cache_answers_does_not_reach_the_metastore() -> None:
    """Also of calls that come at once, each of which is answered in its turn."""

    async def use(world: World) -> None:
        answers = [reply(KNOWN, number, RESULT) for number in (1, 2, 3)]
        world.outcomes = [Outcome(each) for each in answers]
        world.writer.write(CALL * 2 + CALL[:20])
        await world.reads(answers[0] + answers[1])
        world.writer.write(CALL[20:])
        await world.reads(answers[2])
        assert world.asked == [(KNOWN, CALL[-len(world.asked[0][1]) :], False)] * 3
        assert (world.metastore.opened, world.counted(KNOWN, "cache")) == (0, 3)

    run(use)


@pytest.mark.parametrize("seen", [b"", reply(OTHER, 1, RESULT)[:-3]], ids=["nothing", "a part"])
def test_calls_that_do_not_wait_for_replies_keep_their_order(seen: bytes) -> None:
    """A reply is never put before the metastore's to an earlier call, nor into the middle of it."""

    async def use(world: World) -> None:
        world.outcomes = [Outcome(reply(KNOWN, 2, RESULT))]
        first, whole = message(OTHER, 1, {}), reply(OTHER, 1, RESULT)
        world.writer.write(first)
        assert await world.metastore.read(len(first)) == first
        world.metastore.write(seen)
        await world.reads(seen)
        world.writer.write(CALL)
        assert await world.metastore.read(len(CALL)) == CALL
        world.metastore.write(whole[len(seen) :] + reply(KNOWN, 1, RESULT))
        await world.reads(whole[len(seen) :] + reply(KNOWN, 1, RESULT))
        assert world.asked == []

    run(use)


@pytest.mark.parametrize(
    "first",
    [
        b"\x01\x00\x00\x00\x05PLAIN",
        b"\x00\x00\x00\x20" + CALL[:32],
        b"\x80\x01\x00\x04" + CALL[4:],
        CALL[:-1] + b"\x11\x00\x09\x00",
        message(OTHER, 1, {})[:-1] + b"\x11\x00\x09\x00",
    ],
    ids=["sasl", "framed", "oneway", "no call to its end", "another one"],
)
def test_what_is_no_plain_call_is_passed_on_for_good(first: bytes) -> None:
    """Nobody here knows where it ends: no later call is answered, even if it looks like one."""

    async def use(world: World) -> None:
        world.outcomes = [Outcome(reply(KNOWN, 1, RESULT))]
        world.writer.write(first)
        await world.passes(first, b"\x02\x00\x00\x00\x00")
        world.writer.write(CALL)
        await world.passes(CALL, reply(KNOWN, 1, RESULT))
        assert (world.asked, world.ended) == ([], [])

    run(use)


def test_what_ends_otherwise_than_a_call_is_passed_on_from_there() -> None:
    """Its beginning was passed on while it arrived: nothing of it is lost, or sent twice."""

    async def use(world: World) -> None:
        call = message(OTHER, 1, odd(10))
        for piece in (call[:-20], call[-20:-1] + b"\x11\x00\x09\x00", CALL):
            world.writer.write(piece)
            assert await world.metastore.read(len(piece)) == piece
        assert world.asked == []

    run(use)


def test_without_answers_everything_is_passed_on() -> None:
    """The metastore's answers depend on more than the catalog."""

    async def use(world: World) -> None:
        world.writer.write(CALL)
        await world.passes(CALL, reply(KNOWN, 1, RESULT))
        assert world.asked == []

    run(use, answers=False)


def test_a_long_call_is_passed_on_while_it_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not held, and not looked at. The call after it is one again."""
    monkeypatch.setattr("serving.thrift.relay.CALL_BYTES_MAX", 1_000)

    async def use(world: World) -> None:
        call = message(KNOWN, 1, odd(5_000))
        world.writer.write(call[:2_000])
        assert await world.metastore.read(2_000) == call[:2_000]
        world.writer.write(call[2_000:])
        await world.passes(call[2_000:], reply(KNOWN, 1, RESULT))
        assert world.asked == []
        world.outcomes = [Outcome(reply(KNOWN, 2, RESULT))]
        world.writer.write(CALL)
        await world.reads(reply(KNOWN, 2, RESULT))

    run(use)


@pytest.mark.parametrize("call", [KNOWN, OTHER])
def test_without_a_metastore_a_call_gets_an_error_and_the_connection_ends(call: str) -> None:
    """An engine tries the next one; what the cache proves is still answered."""

    async def use(world: World) -> None:
        world.is_away = True
        world.outcomes = [Outcome(reply(KNOWN, 1, RESULT))]
        world.writer.write(CALL)
        await world.reads(reply(KNOWN, 1, RESULT))
        world.writer.write(message(call, 8, {}))
        refused = await world.reader.read()
        assert head_of(refused) == Head(call, 3, 8, 12 + len(call))
        assert Scanner().feed(refused[12 + len(call) :]) == len(refused) - 12 - len(call)
        assert b"no metastore can be reached: away" in refused

    run(use)


def test_the_metastores_end_is_the_engines() -> None:
    """The metastore knew who the engine is; another one does not. What it sent last arrives."""

    async def use(world: World) -> None:
        world.writer.write(CALL)
        await world.passes(CALL, reply(KNOWN, 1, RESULT))
        assert world.metastore.peer is not None
        world.metastore.write(b"last")
        world.metastore.peer[1].close()
        assert await world.reader.read() == b"last"

    run(use)


@pytest.mark.parametrize("sent", [b"", CALL[:-5], message(OTHER, 1, odd(9))[:-5], b"\x01sasl"])
def test_the_engines_end_is_the_metastores(sent: bytes) -> None:
    """Also in the middle of a call, of which the metastore gets what has arrived."""

    async def use(world: World) -> None:
        world.writer.write(message("set_ugi", 1, {}))
        await world.passes(message("set_ugi", 1, {}), reply("set_ugi", 1, RESULT))
        world.writer.write(sent)
        world.writer.close()
        assert world.metastore.peer is not None
        assert await world.metastore.peer[0].read() == sent
        while not world.ended:  # noqa: ASYNC110 - it ends in this thread
            await asyncio.sleep(0)
        assert world.ended[0] is None or isinstance(world.ended[0], OSError)

    run(use)


@pytest.mark.parametrize(
    ("call", "moves"), [("set_ugi", False), ("get_valid_write_ids", False), ("get_table_req", True), (OTHER, True)]
)
def test_a_call_that_was_passed_on_moves_its_session(call: str, *, moves: bool) -> None:
    """Unless it shows nothing of the catalog. What the cache answers next must not be older."""

    async def use(world: World) -> None:
        first = message(call, 1, {})
        world.writer.write(first)
        await world.passes(first, reply(call, 1, RESULT))
        world.outcomes = [Outcome(reply(KNOWN, 2, RESULT))]
        world.writer.write(CALL)
        await world.reads(reply(KNOWN, 2, RESULT))
        assert world.asked[-1][2] is moves

    run(use)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_reply_is_learnt_whole(size: int) -> None:
    """The struct of the result, whichever way it arrives; a call may be answered as soon as it has."""
    learnt: list[bytes] = []

    async def use(world: World) -> None:
        world.outcomes = [Outcome(learn=learnt.append), Outcome(reply(KNOWN, 2, RESULT))]
        world.writer.write(CALL)
        assert await world.metastore.read(len(CALL)) == CALL
        whole = reply(KNOWN, 1, RESULT)
        for at in range(0, len(whole), size):
            assert learnt == []
            world.metastore.write(whole[at : at + size])
            await world.reads(whole[at : at + size])
        assert learnt == [RESULT]
        world.writer.write(CALL)
        await world.reads(reply(KNOWN, 2, RESULT))

    run(use)


@pytest.mark.parametrize(
    "answer",
    [
        b"\x80\x01\x00\x03" + reply(KNOWN, 1, RESULT)[4:],
        reply(KNOWN, 1, encode_struct({0: (STRING, b"x" * 2_000)})),
        reply(KNOWN, 1, RESULT[:-1] + b"\x11\x00\x09\x00"),
        b"no message\x00",
    ],
    ids=["exception", "long", "no struct", "no message"],
)
def test_what_is_no_result_is_passed_on_and_not_learnt(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what would take too much memory."""
    monkeypatch.setattr("serving.thrift.relay.LEARNT_BYTES_MAX", 1_000)
    learnt: list[bytes] = []

    async def use(world: World) -> None:
        world.outcomes = [Outcome(learn=learnt.append)]
        world.writer.write(CALL)
        await world.passes(CALL, answer)
        world.writer.write(CALL)
        await world.passes(CALL, reply(KNOWN, 2, RESULT))
        assert learnt == []

    run(use)


def test_an_error_of_learning_is_none_of_the_engines() -> None:
    """The reply was passed on."""

    def learn(_: bytes) -> None:
        raise ValueError("odd")

    async def use(world: World) -> None:
        world.outcomes = [Outcome(learn=learn)]
        for _ in range(2):
            world.writer.write(CALL)
            await world.passes(CALL, reply(KNOWN, 1, RESULT))

    run(use)
