"""`freshet serve` with TLS, client certificates and tokens that change: the real process, real certificates."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import tomli_w
import trustme
from cryptography import x509

from freshet.local.process import ServerProcess, free_ports
from serving.client import FreshetClient, Tls
from serving.client.errors import ClientError, Unauthorized, Unavailable, Unreachable
from serving.client.sending.credentials import RENEWALS_MAX
from stream.access.certificates import Certificates
from stream.access.grants import digest_of, new_secret
from tests.access.certifying import write
from tests.serving.stack import eventually


@dataclass(slots=True)
class Secured:
    """A front on loopback that has no Kafka: 503 is past its door."""

    place: Path
    port: int
    authority: trustme.CA
    files: Certificates
    secret: str
    process: ServerProcess
    settings: dict[str, Any]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def write(self) -> None:
        """The settings file, as an operator replaces it."""
        new = self.place / "new.toml"
        new.write_text(tomli_w.dumps(self.settings))
        new.rename(self.place / "freshet.toml")

    def ask(self, tls: Tls | None = None, token: str | None = None, host: str = "127.0.0.1") -> type[ClientError]:
        """What a client with these is told."""
        with FreshetClient(f"https://{host}:{self.port}", token, tls=tls or Tls(self.files.ca)) as client:
            with pytest.raises(ClientError) as caught:
                client.get_row("shop", "shop.orders", 7)
            return caught.type

    def serial(self) -> int:
        """Of the certificate that the front shows now."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(("127.0.0.1", self.port), 5) as plain, context.wrap_socket(plain) as shown:
            found = shown.getpeercert(binary_form=True)
        assert found
        return x509.load_der_x509_certificate(found).serial_number


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    place = tmp_path_factory.mktemp("secured")
    authority, secret = trustme.CA(), new_secret()
    files = write(authority, place, "server", "127.0.0.1")
    port, gone = free_ports(2)
    settings: dict[str, Any] = {
        "kafka": {"bootstrap": f"127.0.0.1:{gone}"},
        "keyspaces": {"shop": {}},
        "serve": {
            "port": port,
            "tls": {"certificate": files.certificate, "ca": files.ca},
            "tokens": {
                "reader": {"hash": digest_of(secret.encode())},
                "machine": {"subject": "machine.internal", "roles": ["read"]},
            },
        },
    }
    config = place / "freshet.toml"
    config.write_text(tomli_w.dumps(settings))
    command = [sys.executable, "-m", "freshet", "--config", str(config), "serve"]
    process = ServerProcess("serve", command, log_file=place / "serve.log", cwd=Path(__file__).parents[2])
    found = Secured(place, port, authority, files, secret, process, settings)

    def is_up() -> bool:
        assert process.running(), process.log_tail()
        try:
            return httpx2.get(
                f"{found.url}/healthz", verify=ssl.create_default_context(cafile=files.ca), timeout=40
            ).is_success
        except httpx2.HTTPError:
            return False

    try:
        eventually(is_up, what="the front")
        yield found
    finally:
        process.stop()


def test_a_token_or_a_certificate_opens_the_front(front: Secured) -> None:
    """Neither: 401. A certificate of the authority that the settings don't name gives nothing."""
    machine = write(front.authority, front.place, "machine", "machine.internal")
    stranger = write(front.authority, front.place, "stranger", "stranger.internal")
    assert front.ask() is Unauthorized
    assert front.ask(token="wrong") is Unauthorized
    assert front.ask(token=front.secret) is Unavailable
    assert front.ask(Tls(front.files.ca, machine.certificate)) is Unavailable
    assert front.ask(Tls(front.files.ca, stranger.certificate)) is Unauthorized


@pytest.mark.parametrize(
    ("command", "then"),
    [("get shop t 1", "unknown_table"), ("sink sqlite:// --keyspace shop --table shop.t", "no_owner")],
)
def test_commands_show_what_the_settings_say(front: Secured, command: str, then: str) -> None:
    """A command that asks the front takes the token and the authority of [client], whichever command it is."""
    kept = front.place / "commands.toml"

    def told(token: str) -> str:
        client = {"token": token, "tls": {"ca": front.files.ca}}
        kept.write_text(tomli_w.dumps(front.settings | {"client": client}))
        asked = [sys.executable, "-m", "freshet", "--config", str(kept), *command.split()]
        return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stderr

    assert "error[unauthorized]" in told("wrong")
    assert f"error[{then}]" in told(front.secret)


def test_certificates_that_do_not_fit_are_refused(front: Secured) -> None:
    """By the client: another authority, another host. By the front: an expired one, one of another authority."""
    other = trustme.CA()
    foreign = write(other, front.place, "foreign", "machine.internal")
    expired = write(front.authority, front.place, "expired", "machine.internal", expired=True)
    assert front.ask(Tls(foreign.ca), front.secret) is Unreachable
    assert front.ask(token=front.secret, host="localhost") is Unreachable
    assert front.ask(Tls(front.files.ca, foreign.certificate), front.secret) is Unreachable
    assert front.ask(Tls(front.files.ca, expired.certificate), front.secret) is Unreachable
    assert front.ask(token=front.secret) is Unavailable


def test_plain_http_and_old_tls_get_nothing(front: Secured) -> None:
    """A client that forgot TLS sends its token to nobody who answers; TLS 1.1 is not spoken."""
    with FreshetClient(f"http://127.0.0.1:{front.port}", "freshet_leaked") as client, pytest.raises(ClientError):
        client.get_row("shop", "shop.orders", 7)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", front.port), 5) as plain, pytest.raises(ssl.SSLError):
        old.wrap_socket(plain)
    assert "freshet_leaked" not in front.process.log()


def test_a_new_certificate_is_used_and_a_wrong_one_is_not(front: Secured) -> None:
    """Without a restart, and without a moment in which nobody is answered."""
    path = Path(front.files.certificate)
    before = front.serial()
    good = path.read_bytes()
    path.write_bytes(good[:300])
    assert front.serial() == before
    write(front.authority, front.place, "server", "127.0.0.1")
    assert front.serial() != before
    assert front.ask(token=front.secret) is Unavailable
    assert "a new certificate can't be used" in front.process.log()


def test_tokens_are_rotated_without_a_restart(front: Secured) -> None:
    """The old one counts until it goes; settings that can't be read lock nobody out; a client reads its file again."""
    new, tokens = new_secret(), front.settings["serve"]["tokens"]
    kept = front.place / "client.token"
    kept.write_text(f"{front.secret}\n")
    (front.place / "freshet.toml").write_text("serve = [[")
    eventually(lambda: "credentials can't be read again" in front.process.log(), what="the warning")
    assert front.ask(token=front.secret) is Unavailable
    with FreshetClient(front.url, kept, tls=Tls(front.files.ca)) as client:
        tokens["reader-2"] = {"hash": digest_of(new.encode())}
        front.write()
        eventually(lambda: front.ask(token=new) is Unavailable, what="the new token")
        assert front.ask(token=front.secret) is Unavailable
        del tokens["reader"]
        front.write()
        eventually(lambda: front.ask(token=front.secret) is Unauthorized, what="the end of the old token")
        with pytest.raises(Unauthorized):
            client.get_row("shop", "shop.orders", 7)
        kept.write_text(f"{new}\n")
        with pytest.raises(Unavailable):
            client.get_row("shop", "shop.orders", 7)
    front.secret = new


def test_a_client_asks_for_a_secret_again_as_long_as_it_is_given_others(front: Secured) -> None:
    """Secrets may be exchanged again within a call; a function that gives wrong ones without end is left at once."""
    given = iter([new_secret(), new_secret(), front.secret])
    with FreshetClient(front.url, lambda: next(given), tls=Tls(front.files.ca)) as client, pytest.raises(Unavailable):
        client.get_row("shop", "shop.orders", 7)  # no owner is there: the token is right
    asked: list[str] = []

    def wrong() -> str:
        asked.append(new_secret())
        return asked[-1]

    with FreshetClient(front.url, wrong, tls=Tls(front.files.ca)) as client, pytest.raises(Unauthorized):
        client.get_row("shop", "shop.orders", 7)
    assert len(asked) == 1 + RENEWALS_MAX
