"""One front's connection to an owner: greeting, frames, back-pressure."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol

import msgspec
import structlog

from consumers.owner.framing import (
    FRAME_BYTES_MAX,
    HELLO_BYTES_MAX,
    FrameBuffer,
    decode_request,
    encode_frame,
    id_in,
)
from consumers.owner.protocol import (
    OLDEST,
    TRACED,
    VERSION,
    WAITING,
    WITHOUT_KEYSPACE,
    Answer,
    Checkpoint,
    Drain,
    Failure,
    Fill,
    FillTable,
    Get,
    GetRange,
    Hello,
    OwnerError,
    OwnerObjects,
    OwnerRow,
    OwnerTable,
    RangeRows,
    Request,
    Rows,
    Verified,
    Welcome,
)
from stream import spans
from stream.access.audit import BEGUN, Audit
from stream.access.certificates import subjects_of
from stream.access.grants import ADMIN, ANYONE, FILL, NOBODY, READ, Access, AccessRefused, Grant, shown
from stream.access.who import caller_name
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

CONNECTION_WAITING_MAX: Final = 1_024
WAITING_MAX: Final = 20_000
HELLO_TIMEOUT_S: Final = 10.0
UNGREETED_MAX: Final = 256
"""Connections that have not greeted yet. One more takes the place of the one that was there first: who has a credential
greets at once, and who has none would take the files that stores need."""
WRITE_BUFFER_BYTES: Final = 8 << 20
_OWNER_TOKEN_HINT: Final = "set consumer.owner_token to the same value on both sides, or see [consumer.tokens.NAME]"
_ROLES: Final[dict[type, str]] = {Fill: FILL, FillTable: FILL, Checkpoint: ADMIN, Verified: ADMIN, Drain: ADMIN}
"""Requests that need another role than to read."""


class Answerer(Protocol):
    """What a connection needs of its server, `consumers.owner.server.OwnerServer`."""

    access: Access
    audit: Audit
    waiting: int
    connections: set[FrontConnection]
    ungreeted: dict[FrontConnection, None]

    @property
    def instance(self) -> str:
        """The process's name."""

    def answer(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        """The answer, or a coroutine that waits for it."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs ``work`` as a task."""


class FrontConnection(asyncio.Protocol):
    """One front's connection."""

    def __init__(self, server: Answerer) -> None:
        self._server = server
        self._frames = FrameBuffer(HELLO_BYTES_MAX)
        self._transport: Any = None
        self._handshake: asyncio.Task[None] | None = None
        self._greeted = False
        self._shown = ""
        self._subjects: tuple[str, ...] = ()
        self._waiting = 0
        """Requests under way that wait for what is not there yet,"""
        self._working = 0
        """and others that take more than a turn, which end by themselves."""
        self._write_paused = False
        self._ending: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        secured = self._transport.get_extra_info("ssl_object")
        if secured is not None:
            self._subjects = subjects_of(secured.getpeercert())
        self.enter("")
        asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._close_if_silent)

    def _close_if_silent(self) -> None:
        if not self._greeted:
            self.close()

    @property
    def is_made(self) -> bool:
        """Whether it has its transport. Before that there may be a handshake."""
        return self._transport is not None

    def enter(self, _: str, /) -> bool:
        """It has its place among those that have not greeted. The oldest makes room."""
        if self not in self._server.connections:
            if len(self._server.ungreeted) >= UNGREETED_MAX:
                next(iter(self._server.ungreeted)).abort()
            self._server.connections.add(self)
            self._server.ungreeted[self] = None
        return True

    def shakes(self, handshake: asyncio.Task[None]) -> None:
        """Its TLS has begun."""
        self._handshake = handshake

    def leave(self) -> None:
        """Its place is free, if it has one."""
        self._server.connections.discard(self)
        self._server.ungreeted.pop(self, None)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        if self._ending is not None:
            self._ending.cancel()
        self.leave()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._throttle()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._throttle()

    def _throttle(self) -> None:
        """Reads requests only while answers can be written and few are worked on."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._write_paused or self._working >= CONNECTION_WAITING_MAX:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        """Closes when the other side has taken what it was told, or has had the time for it. Nothing more is read."""
        if self._transport is None:
            self.abort()
        elif not self._transport.is_closing():
            self._frames = FrameBuffer(HELLO_BYTES_MAX)  # what is left in the old one may be much
            self._transport.close()
            self._ending = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        """Ends at once, or has its handshake end."""
        self._server.ungreeted.pop(self, None)
        if self._transport is not None:
            self._transport.abort()
        elif self._handshake is not None:
            self._handshake.cancel()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not self._greeted:
            self._read(data, 1)  # what comes behind a greeting that is refused is not even looked at
            data = b""
        if self._greeted:
            self._read(data)

    def _read(self, data: bytes, frames_max: int = -1) -> None:
        try:
            bodies = self._frames.feed(data, frames_max)
        except OwnerError as error:
            self._send(Failure(0, error.code, str(error), error.hint))
            self.close()
            return
        out: list[bytes] = []
        for body in bodies:
            answer = self._handle(body)
            if answer is not None:
                out.append(_frame(answer))
        if out and self._transport is not None:
            self._transport.write(b"".join(out))
        if not self._greeted and bodies:
            self.close()

    def _handle(self, body: bytes) -> Answer | None:
        try:
            request = decode_request(body)
        except msgspec.DecodeError as error:
            return Failure(
                id_in(body), "bad_request", f"invalid request: {error}", "see docs/internals/owner-protocol.md"
            )
        if not self._greeted:
            return self._greet(request)
        waits = False
        if isinstance(request, WAITING) and request.max_wait_ms > 0:
            waits = self._waiting < CONNECTION_WAITING_MAX
            if not waits:
                request.max_wait_ms = 0  # reading on, since those behind it need not wait, and may be of other callers
        span = begin_answer(request) if spans.is_on else None
        try:
            self._admit(request)
            answer = self._server.answer(request)
        except Exception as error:  # noqa: BLE001 - a request must never end the connection or the process
            answer = failure(request.id, error)
        if asyncio.iscoroutine(answer) and self._server.waiting >= WAITING_MAX:
            answer.close()
            answer = Failure(request.id, "too_busy", f"{WAITING_MAX} requests are waiting already", "try again later")
        if not asyncio.iscoroutine(answer):
            return answer if span is None else end_answer(span, answer)
        self._waiting += waits
        self._working += not waits
        self._server.waiting += 1
        if self._working >= CONNECTION_WAITING_MAX:
            self._throttle()
        self._server.spawn(self._answer_later(request.id, answer, span, waits=waits))
        return None

    def _greet(self, request: Request) -> Answer:
        if not isinstance(request, Hello):
            return Failure(request.id, "bad_request", "the first frame must be a hello", "")
        version = min(request.newest, VERSION)
        if version < max(request.oldest or request.newest, OLDEST):
            why = f"no common protocol version: asked for {request.newest}, this owner speaks {OLDEST} to {VERSION}"
            return Failure(request.id, "version_mismatch", why, "upgrade the older side")
        self._shown = shown(request.token.encode())
        try:
            self._caller()
        except AccessRefused as refused:
            self._server.audit.note(self._who(NOBODY), "connect", "", refused.code)
            return Failure(request.id, refused.code, str(refused), refused.hint or _OWNER_TOKEN_HINT)
        self._greeted = True
        self._server.ungreeted.pop(self, None)
        self._frames.frame_bytes_max = FRAME_BYTES_MAX
        return Welcome(request.id, version, self._server.instance)

    def _caller(self) -> Grant:
        """Who asks, by the credentials that count now. Raises `AccessRefused`."""
        return self._server.access.of_shown(self._shown, self._subjects)

    def _who(self, caller: Grant) -> str:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        return caller_name(caller, str(peer[0]) if peer else "")

    def _note(self, caller: Grant, request: Request, outcome: str) -> None:
        """A line of the audit."""
        keyspace = "" if isinstance(request, WITHOUT_KEYSPACE) else request.keyspace
        self._server.audit.note(self._who(caller), type(request).__name__, keyspace, outcome)

    def _admit(self, request: Request) -> None:
        """Raises `AccessRefused`, and closes the connection, if its credential was taken away; else as `refuse`."""
        caller = ANYONE
        if not self._server.access.is_open:
            try:
                caller = self._caller()
                refuse(caller, request)
            except (AccessRefused, OwnerError) as refused:
                self._note(caller if caller is not ANYONE else NOBODY, request, refused.code)
                if isinstance(refused, AccessRefused):
                    asyncio.get_running_loop().call_soon(self.close)
                raise
        if _ROLES.get(type(request)) == ADMIN:
            self._note(caller, request, BEGUN)

    async def _answer_later(
        self, request_id: int, work: Coroutine[Any, Any, Answer], span: Any, *, waits: bool
    ) -> None:
        try:
            answer = await work
        except Exception as error:  # noqa: BLE001 - as above
            answer = failure(request_id, error)
        finally:
            self._waiting -= waits
            self._working -= not waits
            self._server.waiting -= 1
        self._throttle()
        self._send(answer if span is None else end_answer(span, answer))

    def _send(self, answer: Answer) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_frame(answer))


def refuse(caller: Grant, request: Request) -> None:
    """Raises `OwnerError`: ``forbidden`` without the role, ``not_owner`` for a keyspace that the caller may not see."""
    role = _ROLES.get(type(request), READ)
    if isinstance(request, Get) and not caller.may(FILL):
        request.holder = ""  # it could not end a lease by a fill
    if not caller.may(role):
        raise OwnerError(
            f"{caller.name} has no role {role}", hint="give it one: [consumer.tokens.NAME] roles", code="forbidden"
        )
    keyspace = "" if isinstance(request, WITHOUT_KEYSPACE) else request.keyspace
    if keyspace and not caller.sees(keyspace):
        raise OwnerError(f"this process owns no partition of {keyspace}", code="not_owner")
    if not keyspace and not isinstance(request, Hello) and caller.keyspaces is not None:  # without a name: all
        raise OwnerError(f"{caller.name} may not see all keyspaces", hint="name one", code="forbidden")


def _frame(answer: Answer) -> bytes:
    try:
        return encode_frame(answer)
    except OwnerError as error:
        return encode_frame(Failure(answer.id, error.code, str(error), error.hint))


def failure(request_id: int, error: Exception) -> Failure:
    """``error`` as an answer. An unexpected error is logged and gets the code ``internal``."""
    if isinstance(error, FreshetError):
        moved = error.moved if isinstance(error, OwnerError) else None
        return Failure(request_id, error.code, str(error), error.hint, moved)
    if isinstance(error, UnicodeDecodeError):
        return Failure(request_id, "bad_request", f"the table name in the key is not UTF-8: {error}", "")
    log.error("request failed", error=f"{type(error).__name__}: {error}", exc_info=error)
    return Failure(request_id, "internal", f"{type(error).__name__}: {error}", "see the owner's log")


def begin_answer(request: Request) -> Any:
    """The span of the answer to ``request``; None if its front has none."""
    if not isinstance(request, TRACED) or not request.trace:
        return None
    name = type(request).__name__
    told: dict[str, str | int | bool] = {"keyspace": request.keyspace, "kind": name}
    if isinstance(request, Get | GetRange):
        told["partition"] = request.partition
    if isinstance(request, Get):
        told["keys"] = len(request.keys)
    return spans.begin(f"owner {name}", request.trace, told)


def end_answer(span: Any, answer: Answer) -> Answer:
    """Ends the span with what ``answer`` decides; returns the answer."""
    if isinstance(answer, Failure):
        spans.end(span, {}, failed=answer.code)
        return answer
    decided: Sequence[OwnerRow | OwnerTable | RangeRows | OwnerObjects] = ()
    if isinstance(answer, Rows):
        decided = answer.rows
    elif isinstance(answer, OwnerTable | RangeRows | OwnerObjects):
        decided = [answer]
    freshness = ",".join(sorted({each.freshness for each in decided}))
    spans.end(span, {"served": sum(each.served for each in decided), "freshness": freshness})
    return answer
