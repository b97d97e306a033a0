"""Schemas of a change log in a real registry: what readers get by their ids, and each way in which it refuses."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import trustme
from pydantic import ValidationError

from freshet.local.process import free_ports
from freshet.sections.registry import SchemaRegistrySettings
from serving.changelog.records import NAMESPACE, RECORDS, registry_framing, schema_text
from serving.changelog.registry import RegistryError, SchemaRegistry
from stream.access.certificates import Certificates
from tests.access.certifying import write

MEDIA_TYPE: Final = {"content-type": "application/vnd.schemaregistry.v1+json"}
USER, PASSWORD = "freshet", "pässword"


@pytest.fixture
def topic() -> str:
    """A name whose subjects the registry does not have."""
    return f"log-{uuid.uuid4().hex[:12]}"


class Gate(BaseHTTPRequestHandler):
    """Lets those with the password through to the registry, as a proxy in front of one does."""

    registry = ""

    def do_POST(self) -> None:
        """Passes a request on."""
        body = self.rfile.read(int(self.headers["content-length"]))
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("authorization") != wanted:
            self.answer(401, b'{"error_code":40101,"message":"Unauthorized"}')
            return
        passed = httpx2.post(f"{self.registry}{self.path}", content=body, headers=MEDIA_TYPE, timeout=60)
        self.answer(passed.status_code, passed.content)

    def answer(self, status: int, body: bytes) -> None:
        """Sends an answer."""
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def gate(registry: str, tmp_path: Path) -> Iterator[tuple[str, Certificates]]:
    """The registry behind TLS and a password: its URL, and who signs its certificate."""
    files = write(trustme.CA(), tmp_path, "gate", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Gate,), {"registry": registry}))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", Certificates(ca=files.ca)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_reader_finds_each_schema_by_the_id_in_the_record(registry: str, topic: str) -> None:
    """Confluent's framing: a zero, the id; under the subjects of TopicRecordNameStrategy. Again: the same ids."""
    framing = registry_framing(SchemaRegistry(registry), topic)
    assert framing.keys() == set(RECORDS)
    for name, header in framing.items():
        assert header[:1] == b"\0"
        found = httpx2.get(f"{registry}/schemas/ids/{int.from_bytes(header[1:], 'big')}", timeout=60).json()
        assert json.loads(found["schema"]) == json.loads(schema_text(name))
    subjects = set(httpx2.get(f"{registry}/subjects", timeout=60).json())
    assert {f"{topic}-{NAMESPACE}.{name}" for name in RECORDS} <= subjects
    assert registry_framing(SchemaRegistry(registry), topic) == framing


@pytest.mark.parametrize("version", [1, 2])
def test_a_registry_takes_the_schema_of_now_after_earlier_ones(registry: str, topic: str, version: int) -> None:
    """A log that an earlier version began goes on in its topic: each reader reads what the other version writes."""
    earlier = (Path("schemas") / "log" / f"Transaction.v{version}.avsc").read_text(encoding="utf-8")
    subject = f"{topic}-{NAMESPACE}.Transaction"
    before = SchemaRegistry(registry).register({subject: earlier})
    rule = httpx2.put(f"{registry}/config/{subject}", json={"compatibility": "FULL"}, headers=MEDIA_TYPE, timeout=60)
    assert rule.status_code == 200
    after = registry_framing(SchemaRegistry(registry), topic)["Transaction"]
    assert int.from_bytes(after[1:], "big") not in before.values()


def test_a_schema_that_does_not_go_with_the_subjects_is_refused(registry: str, topic: str) -> None:
    """Another program's schema in the subject, and the registry's rule of compatibility: one line, code and hint."""
    subject = f"{topic}-{NAMESPACE}.Watermark"
    other = {
        "type": "record",
        "name": "Watermark",
        "namespace": NAMESPACE,
        "fields": [{"name": "token", "type": "long"}],
    }
    taken = httpx2.post(
        f"{registry}/subjects/{subject}/versions", json={"schema": json.dumps(other)}, headers=MEDIA_TYPE, timeout=60
    )
    rule = httpx2.put(
        f"{registry}/config/{subject}", json={"compatibility": "BACKWARD"}, headers=MEDIA_TYPE, timeout=60
    )
    assert (taken.status_code, rule.status_code) == (200, 200)
    with pytest.raises(RegistryError) as refused:
        registry_framing(SchemaRegistry(registry), topic)
    assert (refused.value.code, subject in str(refused.value)) == ("registry_refused", True)
    assert "\n" not in str(refused.value)


def test_a_registry_wants_a_password_and_a_certificate(
    gate: tuple[str, Certificates], registry: str, topic: str
) -> None:
    """Both as they are set; without them an error that says what is missing, and shows no password."""
    url, trusted = gate
    known = SchemaRegistry(url, USER, PASSWORD, trusted)
    assert registry_framing(known, topic) == registry_framing(SchemaRegistry(registry), topic)
    for user, password in (("", ""), (USER, "wrong-one")):
        with pytest.raises(RegistryError) as denied:
            registry_framing(SchemaRegistry(url, user, password, trusted), topic)
        assert denied.value.code == "registry_denied"
        assert "schema_registry.password" in denied.value.hint
        assert "wrong-one" not in str(denied.value) + repr(known)
    with pytest.raises(RegistryError) as unknown:
        registry_framing(SchemaRegistry(url, USER, PASSWORD), topic)
    assert unknown.value.code == "registry_unreachable"


@pytest.mark.parametrize(
    "settings", [{"password": "x"}, {"url": "https://user:secret@registry"}, {"url": "registry:8081"}]
)
def test_settings_that_would_fail_or_show_a_secret_are_refused(settings: dict[str, str]) -> None:
    """A password without its user, and a URL that holds one or is none."""
    with pytest.raises(ValidationError):
        SchemaRegistrySettings.model_validate(settings)


def test_what_is_no_registry_is_told(registry: str, topic: str) -> None:
    """Nobody listens, or something else does."""
    [port] = free_ports(1)
    for url in (f"http://127.0.0.1:{port}", registry.removesuffix("/apis/ccompat/v7") + "/apis"):
        with pytest.raises(RegistryError) as refused:
            registry_framing(SchemaRegistry(url), topic)
        assert refused.value.code == "registry_unreachable"
        assert url in str(refused.value)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "registry_denied"),
        (403, "registry_denied"),
        (409, "registry_refused"),
        (422, "registry_refused"),
        (404, "registry_unreachable"),
        (500, "registry_unreachable"),
    ],
)
def test_each_answer_that_gives_no_id_says_what_to_do(status: int, code: str) -> None:
    """A schema that does not fit its subject is none of the password, nor of the address."""
    error = SchemaRegistry("http://registry")._error(status, "log-freshet.log.Watermark", "why")
    assert (error.code, bool(error.hint)) == (code, True)
    assert f"{status} why" in str(error)
