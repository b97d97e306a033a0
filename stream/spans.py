"""Spans of OpenTelemetry: what a request did, across the front, the owners and the reads of the source.

Off unless `turn_on` was called. Until then nothing of OpenTelemetry is loaded, and callers pay for one look at
`is_on`. Whether a request is kept is decided once, by its front, before anything is made for it (`is_kept`): one that
is not kept costs that decision. A span says what kind of read it was, of which keyspace, who answered, and why the
cache did not, in fixed words: never a key, a value, a position or a token, since whoever may look at traces need not be
allowed to read rows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

is_on = False
"""Whether this process makes spans. Read it before anything else here is called."""
_tracer: Any = None
_share = 1.0
PREFIX: Final = "freshet."
Attributes = Mapping[str, str | int | bool]
_TRACEPARENT: Final = re.compile(
    r"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(?:-.*)?"
)
"""As W3C has it: a later version than 00 may have more. The last bit of the group says whether the trace is kept."""


@dataclass(slots=True)
class Notes:
    """What was noted during one request of a front. A batch can have several of each."""

    kinds: set[str] = field(default_factory=set)
    served_from: set[str] = field(default_factory=set)
    freshness: set[str] = field(default_factory=set)
    reasons: set[str] = field(default_factory=set)
    code: str = ""

    def attributes(self) -> dict[str, str]:
        """As attributes of a span; what was not noted is left out."""
        told = {
            "kind": self.kinds,
            "served_from": self.served_from,
            "freshness": self.freshness,
            "reason": self.reasons,
            "code": {self.code} - {""},
        }
        return {PREFIX + name: ",".join(sorted(values)) for name, values in told.items() if values}


_notes: ContextVar[Notes | None] = ContextVar("freshet_span_notes", default=None)
"""Of the request that is under way; None: there is none, or it is not kept."""


def turn_on(tracer: Any, share: float = 1.0) -> None:
    """From now on spans are made by ``tracer``, OpenTelemetry's, which keeps all that it is asked for.

    ``share``: of the requests whose caller does not say whether its trace is kept.
    """
    global is_on, _tracer, _share
    _tracer, _share, is_on = tracer, share, True


def turn_off() -> None:
    """No more spans are begun."""
    global is_on
    is_on = False


def is_kept(parent: str) -> bool:
    """Whether a request has spans: as the caller's ``traceparent`` says; of those without a valid one a share has."""
    told = _TRACEPARENT.fullmatch(parent) if parent else None
    return random.random() < _share if told is None else bool(int(told[1], 16) & 1)


def note_answer(kind: str, served_from: str, freshness: str) -> None:
    """Notes an answer of the request that is under way, if there is one."""
    if (notes := _notes.get()) is not None:
        notes.kinds.add(kind)
        notes.served_from.add(served_from)
        notes.freshness.add(freshness)


def note_miss(reason: str) -> None:
    """Notes why the cache did not answer."""
    if (notes := _notes.get()) is not None:
        notes.reasons.add(reason)


def note_error(code: str) -> None:
    """Notes the code of an error answer."""
    if (notes := _notes.get()) is not None:
        notes.code = code


def traceparent() -> str:
    """The span that is under way, as W3C's ``traceparent`` has it; "" if there is none."""
    if _notes.get() is None:
        return ""
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def begin(name: str, parent: str, attributes: Attributes) -> Any:
    """A span below ``parent``, a ``traceparent`` that another process sent. `end` ends it."""
    from opentelemetry.trace import SpanKind

    return _tracer.start_span(name, _context_of(parent), SpanKind.SERVER, _named(attributes))


def end(span: Any, attributes: Attributes, *, failed: str = "") -> None:
    """Ends a span. ``failed``: the code of what went wrong."""
    from opentelemetry.trace import StatusCode

    span.set_attributes(_named(attributes))
    if failed:
        span.set_attribute(f"{PREFIX}code", failed)
        span.set_status(StatusCode.ERROR)
    span.end()


@contextmanager
def request_span(name: str, parent: str, attributes: Attributes) -> Iterator[Any]:
    """The span of a front's request that is kept, below its caller's. At its end it gets what was noted meanwhile."""
    from opentelemetry.trace import SpanKind

    notes = Notes()
    before = _notes.set(notes)
    try:
        with _current(name, _context_of(parent), SpanKind.SERVER, attributes) as span:
            try:
                yield span
            finally:
                span.set_attributes(notes.attributes())
    finally:
        _notes.reset(before)


@contextmanager
def source_span(kind: str, shard: str) -> Iterator[None]:
    """The span of a read of the source, below the request that began it. Nothing if that has none."""
    if _notes.get() is None:
        yield
        return
    from opentelemetry.trace import SpanKind

    with _current("read source", None, SpanKind.CLIENT, {"kind": kind, "shard": shard}):
        yield


@contextmanager
def _current(name: str, context: Any, kind: Any, attributes: Attributes) -> Iterator[Any]:
    """A span that others are begun below. Of an exception only that there was one: its text may quote a value."""
    from opentelemetry.trace import StatusCode

    with _tracer.start_as_current_span(
        name, context, kind, _named(attributes), record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException:
            span.set_status(StatusCode.ERROR)
            raise


def _context_of(parent: str) -> Any:
    """The context below a ``traceparent``; an empty one for one that can't be read, so that a trace begins."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": parent}, Context()) if parent else Context()


def _named(attributes: Attributes) -> dict[str, str | int | bool]:
    return {name if "." in name else PREFIX + name: value for name, value in attributes.items()}
