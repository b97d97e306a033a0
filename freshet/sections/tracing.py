"""Traces of requests, in the settings: to which collector of OpenTelemetry they go."""

from __future__ import annotations

import importlib.metadata
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pydantic import Field

from freshet import DISTRIBUTION
from freshet.sections.values import HttpUrl, Section
from freshet.settings_errors import SettingsError

EXPORT_TIMEOUT_S: Final = 5
"""How long the collector may take for one batch of spans, and a process to end if the collector is away."""


class TracingSettings(Section):
    """``endpoint``: URL of a collector that takes OTLP over HTTP; empty: there are no traces.

    ``share``: how many of the requests are kept whose caller does not say; a caller's ``traceparent`` says it.
    """

    endpoint: HttpUrl = ""
    share: float = Field(default=1.0, ge=0, le=1)

    @contextmanager
    def traced(self, role: str) -> Iterator[None]:
        """Sends this process's spans to the collector, those left at the end too. Raises `SettingsError`.

        What can't be sent is dropped after some tries: a collector that is away hinders no read.
        """
        if not self.endpoint:
            yield
            return
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError as missing:
            raise SettingsError(
                f"tracing.endpoint is set, but {missing.name} is not installed",
                hint=f"pip install '{DISTRIBUTION}[otel]', or leave tracing.endpoint empty",
                code="no_tracing",
            ) from missing
        from stream import spans

        version = importlib.metadata.version(DISTRIBUTION)
        about = Resource.create({"service.name": f"freshet-{role}", "service.version": version})
        provider = TracerProvider(ALWAYS_ON, about, shutdown_on_exit=False)  # `spans.is_kept` has decided
        exporter = OTLPSpanExporter(f"{self.endpoint.rstrip('/')}/v1/traces", timeout=EXPORT_TIMEOUT_S)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        spans.turn_on(provider.get_tracer("freshet", version), self.share)
        try:
            yield
        finally:
            spans.turn_off()
            ending = threading.Thread(target=provider.shutdown, daemon=True)  # by itself it tries for half a minute
            ending.start()
            ending.join(EXPORT_TIMEOUT_S)
