"""What a change stream tells, as /openapi.json describes it and as clients get it.

Changes and events are of a kind, and a field that a kind does not have is empty. A kind that this version does not
know is passed on: treat a change of an unknown kind like a void of its table, or of all if it names none.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import msgspec

from .errors import BadRequest, ClientError, ServerError, TooManyRequests, Unavailable, Unreachable
from .keys import format_key, format_value
from .sending.credentials import RENEWALS_MAX
from .wire import HttpRequest

READ_TIMEOUT_S: Final = 60.0
"""Between two pieces of a stream, beyond its heartbeat, so that a dead connection is noticed."""
_PASSING: Final = frozenset({"stopping", "stream_unavailable", "too_many_streams", "rate_limited"})
"""Codes with which a stream ends that can go on after a while."""
_PAUSE_S_MAX: Final = 5.0
WARN_S: Final = 10.0
"""After so long without an answer a stream that goes on trying says so, once until it is answered."""
_log = logging.getLogger("freshet_client")


class StreamColumn(msgspec.Struct, frozen=True):
    """A column of a description. ``sql_type``: as the source has it, ``decimal(10,2)``; "": unknown."""

    name: str
    kind: str
    sql_type: str = ""


class StreamChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of a transaction.

    ``kind``: ``row``; ``void`` (rows of ``table``, or of all tables if it is ``*``, may have changed); ``schema`` (the
    table is described anew; without ``columns`` it is gone); ``backfill`` (all rows of the table begin to come, or have
    come, if ``complete``); ``epoch`` (the shard's history was replaced: all of it is void); ``scope`` (only tables
    that are described from here on are told).

    ``op`` of a row: ``value``; ``deleted``; ``void`` (changed, its image is not in the log); ``unmatched`` (it does not
    have what was asked for, or no more). ``row``: column → canonical value, where the stream includes rows.
    ``read_at``: the log has no image, and the row was read for this stream: a token of what is in it at most. It is
    never older than the event, and may be newer. ``was``: what there was before the transaction, where the stream
    includes it and the keyspace publishes it: ``value``, with ``before``, column → value; ``absent``, no such row;
    ``unmatched``, a row without what was asked for; "" is unknown.

    Of the kind ``keyless``, where the stream includes it: a row of a table without a primary key was ``inserted``,
    ``updated`` or ``deleted`` (``op``), with its images ``before`` and after (``row``).
    """

    kind: str
    table: str = ""
    key: list[Any] = []
    op: str = ""
    row: dict[str, Any] | None = None
    reason: str = ""
    complete: bool = False
    tables: list[str] = []
    columns: list[StreamColumn] = []
    primary_key: list[str] = []
    cacheable: bool = True
    read_at: str = ""
    was: str = ""
    before: dict[str, Any] | None = None


class StreamEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One event of a change stream; ``checkpoint``: a stream that begins there goes on after it.

    ``kind``: ``transaction`` (whole, over all partitions; ``token`` is its event token); ``watermark`` (all up to
    ``token``, which is a session's vector, has been told; ``timestamp`` and ``as_of_ms`` are the smallest of all
    shards); ``unreadable`` (a message that nobody can read: anything may have changed); ``end`` (as a watermark: all
    has been told that a stream ``until`` now was asked for); ``error`` (the stream can't go on).
    """

    kind: str
    checkpoint: str = ""
    token: str = ""
    shard: str = ""
    epoch: int = 0
    gtid: str = ""
    timestamp: int = 0
    as_of_ms: int = 0
    changes: list[StreamChange] = []
    partition: int = 0
    offset: int = 0
    reason: str = ""
    code: str = ""
    message: str = ""
    hint: str = ""


_event = msgspec.json.Decoder(StreamEvent)


def stream_request(
    keyspace: str,
    begin: str | int,
    *,
    tables: Sequence[str] = (),
    include_rows: bool = False,
    columns: Sequence[str] = (),
    where: Mapping[str, object] | None = None,
    key: Sequence[object] | None = None,
    key_range: str = "",
    until: str = "",
    read_void: bool = False,
    include_before: bool = False,
    include_keyless: bool = False,
    heartbeat_ms: int | None = None,
) -> HttpRequest:
    """GET of a change stream. Raises `BadRequest` for a name, value or key that a URL can't have.

    ``key``: of the one row of the one table, also if it is an empty text; ``until="now"``: the stream ends with what is
    there when it begins; ``until="handover"``: with a shard that others succeed. ``read_void``: rows whose image the
    log has not are read, where the stream includes rows. ``include_before``: what rows were before is told, too, where
    the keyspace publishes it. ``include_keyless``: and rows of tables without a primary key.
    """
    params = {"keyspace": keyspace, "from": str(begin)}
    if any("," in each for each in (*tables, *columns)):
        raise BadRequest("a name with a comma can't be in a list of a URL", code="bad_parameter")
    wanted = {"tables": ",".join(tables), "include_columns": ",".join(columns), "key_range": key_range}
    wanted["until"] = until
    wanted["include_rows"] = "true" if include_rows or columns else ""
    wanted["read_void"] = "true" if read_void else ""
    wanted["include_before"] = "true" if include_before else ""
    wanted["include_keyless"] = "true" if include_keyless else ""
    wanted["heartbeat_ms"] = str(heartbeat_ms) if heartbeat_ms is not None else ""
    params |= {name: text for name, text in wanted.items() if text}
    params |= {"key": format_key(key)} if key is not None else {}
    params |= {f"where.{name}": format_value(value) for name, value in (where or {}).items()}
    return HttpRequest("GET", "/v1/stream", params)


class Lines:
    """Puts the pieces of a stream together to events. Lines end with LF only: a text may have Unicode's other ends."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        """Pieces of a line without its end, joined only then: a large transaction is a line of thousands of them."""

    def events(self, piece: bytes) -> Iterator[StreamEvent]:
        """The events that ``piece`` completes. Raises `ClientError`."""
        self._rest.append(piece)
        if b"\n" not in piece:
            return iter(())
        *lines, rest = b"".join(self._rest).split(b"\n")
        self._rest = [rest]
        return (read_event(line) for line in lines if line)


def read_event(line: bytes) -> StreamEvent:
    """The event in a line. Raises `ClientError`: `StreamEnded` for an ``error``."""
    try:
        event = _event.decode(line)
    except (ValueError, RecursionError) as error:
        raise ServerError(f"the stream has a line that is not Freshet's: {error}", code="bad_answer") from None
    if event.kind == "error":
        raise StreamEnded(event.message, hint=event.hint, code=event.code)
    return event


class StreamEnded(ClientError):
    """The front ended the stream; ``code`` says why, as of a request that fails."""


@dataclass(slots=True)
class Following:
    """Where a client's stream is, over all its connections. ``request``: for the next one.

    ``give_up_s``: how long after a first failure it tries to go on without hearing anything; None: for ever. What its
    reader takes for an event does not count.
    """

    request: HttpRequest
    give_up_s: float | None
    clock: Callable[[], float] = time.monotonic
    jitter: Callable[[], float] = random.random
    _failing_since: float | None = None
    _front: str = ""
    """The one that was asked last."""
    _failed: set[str] = field(default_factory=set)
    """The fronts that are not asked again before all others."""
    _attempts: int = 0
    _renewals: int = RENEWALS_MAX
    _has_warned: bool = False

    @property
    def read_timeout_s(self) -> float:
        """How long a front may send nothing."""
        heartbeat_ms = self.request.params.get("heartbeat_ms", "")
        return READ_TIMEOUT_S + (int(heartbeat_ms) / 1000 if heartbeat_ms.isdecimal() else 0.0)

    def front(self, urls: Sequence[str]) -> str:
        """Which of the fronts the next connection goes to; ``urls``: the best one first."""
        if self._failed.issuperset(urls):
            self._failed.clear()
        self._front = next(url for url in urls if url not in self._failed)
        return self._front

    def was_not_asked(self) -> None:
        """The front was not asked, for want of a free connection: it is as good as before."""
        self._front = ""

    def heard(self, event: StreamEvent) -> None:
        """The next connection goes on after this event."""
        self._failed.clear()
        self._attempts, self._failing_since, self._renewals, self._has_warned = 0, None, RENEWALS_MAX, False
        if event.checkpoint:
            params = {**self.request.params, "from": event.checkpoint}
            self.request = self.request._replace(params=params)

    def may_renew(self, error: ClientError) -> bool:
        """Whether the token is to be asked for anew after ``error``: a few times, until something is heard again."""
        if error.status != HTTPStatus.UNAUTHORIZED or not self._renewals:
            return False
        self._renewals -= 1
        return True

    def pause_after(self, error: ClientError | None) -> float:
        """How long to wait before the next connection. Raises ``error`` if that would not help.

        None: the connection has ended by itself. Raises `Unreachable` if nothing comes of one after the other.
        """
        now = self.clock()
        self._failing_since = now if self._failing_since is None else self._failing_since
        silent_s = now - self._failing_since
        late = self.give_up_s is not None and silent_s >= self.give_up_s
        if error is not None:
            passes = isinstance(error, Unreachable | Unavailable | TooManyRequests) or error.code in _PASSING
            if late or not passes:
                raise error
        elif late:
            raise Unreachable(f"no events of {self.request.params['keyspace']} for {silent_s:.0f} s: it ends at once")
        if silent_s >= WARN_S and not self._has_warned:
            self._has_warned = True
            why = error or "the stream ends at once"
            _log.warning("no events of %s for %.0f s, trying again: %s", self.request.params["keyspace"], silent_s, why)
        self._failed.add(self._front)
        self._attempts += 1
        pause_s: float = min(0.05 * 2 ** min(self._attempts, 10), _PAUSE_S_MAX)
        return pause_s * (0.5 + self.jitter() / 2)
