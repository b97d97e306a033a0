"""Traces, as operators see them: each span ends, lies below the one that caused it, and has nothing of the data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.kernel.switching import Process
from lab.simulation.operators.judging import EXPLAINS, Complain
from stream import spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, Span, TracerProvider

IS_THERE: Final = find_spec("opentelemetry") is not None and find_spec("opentelemetry.sdk") is not None
"""Whether OpenTelemetry is installed. It is an extra, and a history without it has no spans."""
OPEN_S_MAX: Final = 60.0
"""No request takes longer while all is well."""
NUMBERS: Final = frozenset({"http.response.status_code", "freshet.partition", "freshet.keys", "freshet.served"})
_FIXED: Final = re.compile(r"[A-Za-z_, /.-]*|[a-z]+/0")
"""Words, or a shard. Keys, values and positions have digits here."""


@cache
def _provider() -> tuple[TracerProvider, Any]:
    """And what hands on to the traces of the history that runs, its ``traces``."""
    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    class Recorder(SpanProcessor):  # type: ignore[misc]
        traces: Traces

        def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002
            self.traces.began(span)

        def on_end(self, span: ReadableSpan) -> None:
            self.traces.ended(span)

    provider, recorder = TracerProvider(ALWAYS_ON, Resource.get_empty(), shutdown_on_exit=False), Recorder()
    provider.add_span_processor(recorder)
    return provider, recorder


class Traces:
    """The spans of one history."""

    def __init__(self, kernel: Kernel, complain: Complain) -> None:
        self._kernel = kernel
        self._complain = complain
        self._known = set[int]()
        self._open: dict[int, tuple[str, Process, float]] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        """Every request has spans while it lasts."""
        provider, recorder = _provider()
        recorder.traces = self
        spans.turn_on(provider.get_tracer("simulation"))
        try:
            yield
        finally:
            spans.turn_off()

    def began(self, span: Span) -> None:
        """A span begins."""
        number, parent = _id(span), span.parent
        self._known.add(number)
        self._open[number] = span.name, self._kernel.current_process, self._kernel.now
        if span.name.startswith("owner ") if parent is None else parent.span_id not in self._known:
            self._complain(EXPLAINS, f"the span {span.name} does not lie below the one that caused it")

    def ended(self, span: ReadableSpan) -> None:
        """A span ends, with all that it has."""
        self._open.pop(_id(span), None)
        for name, value in {"name": span.name, **(span.attributes or {})}.items():
            if name == "freshet.keyspace":  # whoever asks may name any
                continue
            is_fixed = name in NUMBERS if isinstance(value, int) else _FIXED.fullmatch(str(value).replace("/v1/", "/"))
            if not is_fixed:
                self._complain(EXPLAINS, f"a span says {value!r} as its {name}")

    def unended(self) -> list[str]:
        """The spans that should have ended long ago, of processes that live."""
        begun = self._kernel.now - OPEN_S_MAX
        return [name for name, process, at in self._open.values() if at < begun and not process.dead]


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)
