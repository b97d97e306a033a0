"""Traces: from a client's span to the owner's and the source read's, sent to a collector, with nothing of the data."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from consumers.owner.connection import begin_answer, end_answer
from consumers.owner.framing import decode_request, encode_frame
from consumers.owner.protocol import Failure, Get
from freshet.local.mariadb import MariaDBAddress
from freshet.local.process import free_ports
from freshet.sections.tracing import EXPORT_TIMEOUT_S, TracingSettings
from freshet.settings_errors import SettingsError
from serving.client import FreshetClient
from serving.http.admission.tracing import Traced
from stream import spans
from stream.kafka.connection import KafkaCluster
from tests.servers.databases import own_database
from tests.serving.stack import ServingStack, eventually, settled

SECRET = "a name that nobody may read in a trace"
KEY = 471147
TABLES = (
    "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(60))",
    f"INSERT INTO people VALUES ({KEY}, '{SECRET}'), (2, '{SECRET}')",
)
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"


@dataclass
class Span:
    """One that was received. ``service``: of the process that made it."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    attributes: dict[str, Any]


@dataclass
class Collector:
    """Takes OTLP over HTTP, as OpenTelemetry's own does."""

    url: str
    bodies: list[bytes] = field(default_factory=list)

    def spans(self, trace: str) -> dict[str, Span]:
        """Name → span, of one trace."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        found = {}
        for body in list(self.bodies):
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                service = _values(of_resource.resource.attributes)["service.name"]
                for each in (span for scope in of_resource.scope_spans for span in scope.spans):
                    if each.trace_id.hex() == trace:
                        ids = (each.trace_id.hex(), each.span_id.hex(), each.parent_span_id.hex())
                        found[each.name] = Span(service, each.name, *ids, _values(each.attributes))
        return found

    def awaited(self, trace: str, *names: str) -> list[Span]:
        """The spans of these names, once all are there."""
        eventually(lambda: set(names) <= self.spans(trace).keys(), what=f"{names} of the trace {trace}")
        found = self.spans(trace)
        return [found[name] for name in names]


def _values(pairs: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in pairs}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """One that listens."""
    [port] = free_ports(1)
    taken = Collector(f"http://127.0.0.1:{port}")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            import gzip

            body = self.rfile.read(int(self.headers["content-length"]))
            taken.bodies.append(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Prints nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield taken
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def traced(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[ServingStack]:
    """A stack whose front and consumer send their spans to the collector."""
    keyspace = f"ks{uuid.uuid4().hex[:10]}"
    with own_database(mariadb, *TABLES) as database:
        stack = ServingStack(tmp_path_factory.mktemp("traced"), kafka, mariadb, keyspace, database)
        stack.environment |= {"FRESHET_TRACING__ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        with stack:
            yield stack


def test_a_clients_trace_reaches_the_owner_and_the_source(traced: ServingStack, collector: Collector) -> None:
    """A row older than the topic: the front's span is below the caller's; the owner's and the source's below that."""
    token = settled(traced)
    url = f"{traced.url}/v1/rows/{traced.keyspace}/people/{KEY}"
    told = httpx2.get(url, params={"token": token}, headers={"traceparent": f"00-{TRACE}-{CALLER}-01"}, timeout=30)
    assert (told.json()["served_from"], told.json()["row"]["name"]) == ("source", SECRET)
    front, owner, source = collector.awaited(TRACE, "GET /v1/rows", "owner Get", "read source")
    assert (front.service, owner.service, source.service) == ("freshet-serve", "freshet-consume", "freshet-serve")
    assert (front.parent, owner.parent, source.parent) == (CALLER, front.span, front.span)
    assert front.attributes == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "freshet.keyspace": traced.keyspace,
        "freshet.kind": "row",
        "freshet.served_from": "source",
        "freshet.freshness": "fresh",
        "freshet.reason": "not_folded",
    }
    assert owner.attributes["freshet.keyspace"] == traced.keyspace
    assert (owner.attributes["freshet.keys"], owner.attributes["freshet.served"]) == (1, 0)
    assert source.attributes == {"freshet.kind": "row", "freshet.shard": traced.shard}
    sent = b"".join(collector.bodies)
    for secret in (SECRET, str(KEY), token, "MariaDB/"):
        assert secret.encode() not in sent, secret


def test_a_span_of_the_application_is_carried_by_the_client(traced: ServingStack, collector: Collector) -> None:
    """An application that uses OpenTelemetry sends nothing by hand; a batch has one span, with all that it met."""
    from opentelemetry.sdk.trace import TracerProvider

    traced.run("REPLACE INTO people VALUES (1, 'one')")
    token = settled(traced)
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("an application")
    with tracer.start_as_current_span("a page") as page, FreshetClient(traced.url) as client:
        rows = client.session(token).get_rows(traced.keyspace, [("people", (1,)), ("people", (2,))])
    assert {row.served_from for row in rows} == {"cache", "source"}
    trace = f"{page.get_span_context().trace_id:032x}"
    [found] = collector.awaited(trace, "POST /v1/rows")
    assert found.parent == f"{page.get_span_context().span_id:016x}"
    assert found.attributes["freshet.served_from"] == "cache,source"


def test_an_error_has_its_code_and_a_caller_may_want_no_trace(traced: ServingStack, collector: Collector) -> None:
    """The caller's flag decides: what it does not keep, nobody does."""
    unwanted, wanted = uuid.uuid4().hex, uuid.uuid4().hex
    url = f"{traced.url}/v1/rows/nowhere/people/1"
    for trace, flag in ((unwanted, "00"), (wanted, "01")):
        assert httpx2.get(url, headers={"traceparent": f"00-{trace}-{CALLER}-{flag}"}, timeout=40).status_code == 404
    [found] = collector.awaited(wanted, "GET /v1/rows")
    assert found.attributes["freshet.code"] == "unknown_keyspace"
    assert collector.spans(unwanted) == {}
    assert httpx2.get(url, headers={"traceparent": "nonsense"}, timeout=40).status_code == 404


@pytest.fixture
def made() -> Iterator[Any]:
    """Spans on in this process; what was made."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans.turn_on(provider.get_tracer("tests"))
    try:
        yield exporter
    finally:
        spans.turn_off()


def test_the_text_of_an_exception_is_not_told(made: Any) -> None:
    """A driver's message may quote a row: the span says that it failed, and no more."""
    with (
        pytest.raises(ValueError, match=SECRET),
        spans.request_span("GET /v1/rows", "", {}),
        spans.source_span("row", "shop/0"),
    ):
        raise ValueError(SECRET)
    span, of_request = made.get_finished_spans()
    assert SECRET not in of_request.to_json()
    assert not span.status.is_ok
    assert SECRET not in span.to_json()


class NoTracer:
    """What no span may be asked of."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} of a tracer was wanted for a request that is not kept")


def _ask(traceparent: str) -> str:
    """What a front would tell an owner during a request with this header, through the wrapper of the guard."""
    told = []

    async def guard(*_: Any) -> None:
        with spans.source_span("row", "shop/0"):
            spans.note_miss("not_folded")
            told.append(spans.traceparent())

    headers = [(b"traceparent", traceparent.encode())] if traceparent else []
    scope = {"type": "http", "method": "GET", "path": "/v1/rows/shop/people/1", "query_string": b"", "headers": headers}
    asyncio.run(Traced(guard)(scope, cast("Any", None), cast("Any", None)))
    return told[0]


@pytest.mark.parametrize(
    ("traceparent", "share"),
    [
        ("", 0.0),
        (f"00-{TRACE}-{CALLER}-00", 1.0),
        (f"cc-{TRACE}-{CALLER}-02-more", 1.0),
        ("nonsense", 0.0),
        (f"00-{'0' * 32}-{CALLER}-01", 0.0),
        (f"00-{TRACE}-{'0' * 16}-01", 0.0),
        (f"ff-{TRACE}-{CALLER}-01", 0.0),
        (f"00-{TRACE}-{CALLER}-01-more", 0.0),
    ],
)
def test_a_request_that_is_not_kept_makes_no_span(traceparent: str, share: float) -> None:
    """The caller's flag decides, else the share; a header that is none of W3C's counts as no header."""
    spans.turn_on(NoTracer(), share)
    try:
        assert _ask(traceparent) == ""
    finally:
        spans.turn_off()


@pytest.mark.parametrize("traceparent", ["", f"00-{TRACE}-{CALLER}-01", f"cc-{TRACE}-{CALLER}-03-more"])
def test_a_request_that_is_kept_says_so_to_the_owner(made: Any, traceparent: str) -> None:
    """Its own span below the caller's, the source's below that, and that of the request for owners."""
    told = _ask(traceparent)
    source, front = made.get_finished_spans()
    assert source.parent.span_id == front.context.span_id
    assert told.split("-")[1] == f"{front.context.trace_id:032x}"
    assert not traceparent or (f"{front.context.trace_id:032x}", f"{front.parent.span_id:016x}") == (TRACE, CALLER)


def test_of_callers_who_do_not_say_a_share_is_kept() -> None:
    """As many as the setting says, by chance."""
    spans.turn_on(NoTracer(), 0.25)
    try:
        assert 800 < sum(spans.is_kept("") for _ in range(4_000)) < 1_200
    finally:
        spans.turn_off()


def test_an_owner_tells_why_it_refused(made: Any) -> None:
    """By its code alone; a request without a front's span has none here."""
    parent = f"00-{TRACE}-{CALLER}-01"
    span = begin_answer(Get(1, "shop", 0, [SECRET.encode()], trace=parent))
    refused = Failure(1, "not_owner", SECRET, "")
    assert end_answer(span, refused) is refused
    [made_span] = made.get_finished_spans()
    assert made_span.attributes["freshet.code"] == "not_owner"
    assert SECRET not in made_span.to_json()
    assert f"{made_span.parent.span_id:016x}" == CALLER
    assert begin_answer(Get(1, "shop", 0, [b""])) is None


def test_without_a_span_nothing_is_carried() -> None:
    """The field is empty, and an owner of before passes it over (`tests.consumers.owner.test_versions`)."""
    frame = encode_frame(Get(7, "shop", 0, [b"k"]))
    assert frame.endswith(b"\xa0")
    request = decode_request(frame[4:])
    assert isinstance(request, Get)
    assert request.trace == ""


def test_a_missing_package_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it; and without an endpoint nothing of it is looked for."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with TracingSettings().traced("serve"):
        assert not spans.is_on
    with (
        pytest.raises(SettingsError, match="not installed") as refused,
        TracingSettings(endpoint="http://127.0.0.1:4318").traced("serve"),
    ):
        raise AssertionError("it must not start")
    assert refused.value.code == "no_tracing"
    assert "[otel]" in refused.value.hint


def test_a_collector_that_hangs_delays_no_end() -> None:
    """Who deploys gives a process some seconds to end, and kills it then."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = TracingSettings(endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
        with settings.traced("serve"):
            for _ in range(2_000):
                with spans.request_span("GET /v1/rows", "", {}):
                    pass
            began = time.monotonic()
        assert time.monotonic() - began < EXPORT_TIMEOUT_S + 5
    assert not spans.is_on


def test_off_means_that_nothing_is_loaded(tmp_path: Path) -> None:
    """The commands' modules import nothing of OpenTelemetry, so reads can't pay for it."""
    import subprocess

    code = (
        "import sys, freshet.cli, freshet.commands.serve, freshet.commands.consume, serving.http.app\n"
        "import consumers.owner.server, serving.http.server\n"
        "assert not [each for each in sys.modules if each.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=60)
