"""A real broker that wants TLS: one listener with SASL/SCRAM for a user, one with client certificates."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trustme
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import serialization

from freshet.local.kafka import KafkaServer
from freshet.local.process import free_ports
from stream.kafka.connection import KafkaCluster, client_settings

MECHANISM: Final = "SCRAM-SHA-512"
USER: Final = "freshet"


@dataclass(frozen=True, slots=True)
class SecuredKafka:
    """Its two addresses with the settings that they want, and what must never be printed."""

    by_password: KafkaCluster
    by_certificate: KafkaCluster
    secrets: tuple[str, ...]


@contextmanager
def secured_kafka(password: str) -> Iterator[SecuredKafka]:
    """Starts the broker with certificates of a new authority, and creates `USER`; stops it at the end of the block."""
    with _broker() as (place, server, ports):
        key = (place / "client.pem").read_text()
        own = {f"ssl.{part}.location": str(place / "client.pem") for part in ("certificate", "key")}
        yield SecuredKafka(
            _way_in(place, server, ports[0], USER, password),
            KafkaCluster(f"127.0.0.1:{ports[1]}", {"security.protocol": "SSL", **_trust(place), **own}),
            (password, key.splitlines()[1]),
        )


@contextmanager
def guarded_kafka(users: Mapping[str, str]) -> Iterator[tuple[KafkaServer, dict[str, KafkaCluster]]]:
    """A broker with its authorizer on, where ``users`` (name → password) may do nothing yet.

    Yields the server, whose plain listener may do everything, and each user's way in, by TLS and SCRAM.
    """
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with _broker(rights) as (place, server, ports):
        yield server, {name: _way_in(place, server, ports[0], name, password) for name, password in users.items()}


@contextmanager
def _broker(more: Mapping[str, str] | None = None) -> Iterator[tuple[Path, KafkaServer, list[int]]]:
    """The broker, and where its certificates are and that of a client. Ports: for passwords, for certificates."""
    with tempfile.TemporaryDirectory(prefix="freshet-secured-") as directory:
        place = Path(directory)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(place / "ca.pem")
        write_certificate(authority.issue_cert("127.0.0.1"), place / "server.pem")
        write_certificate(authority.issue_cert("client@freshet.test"), place / "client.pem")
        ports = free_ports(2)
        listeners = {"PASSWORD": (ports[0],) * 2, "CERTIFICATE": (ports[1],) * 2}
        settings = broker_settings(place) | dict(more or {})
        with KafkaServer(place / "kafka", listeners=listeners, settings=settings) as server:
            yield place, server, ports


def _way_in(place: Path, server: KafkaServer, port: int, user: str, password: str) -> KafkaCluster:
    """That of a new user, by TLS and SCRAM."""
    create_user(server.cluster, user, password)
    sasl = {"sasl.mechanism": MECHANISM, "sasl.username": user, "sasl.password": password}
    return KafkaCluster(f"127.0.0.1:{port}", {"security.protocol": "SASL_SSL", **_trust(place), **sasl})


def _trust(place: Path) -> dict[str, str]:
    return {"ssl.ca.location": str(place / "ca.pem")}


def broker_settings(place: Path) -> dict[str, str]:
    """The broker's properties for both listeners."""
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", "PASSWORD": "SASL_SSL", "CERTIFICATE": "SSL"}
    return {
        "listener.security.protocol.map": ",".join(":".join(each) for each in protocols.items()),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(place / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(place / "ca.pem"),
        "sasl.enabled.mechanisms": MECHANISM,
        "listener.name.certificate.ssl.client.auth": "required",
        "listener.name.password.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
    }


def write_certificate(certificate: trustme.LeafCert, path: Path) -> None:
    """Writes the private key, as Java wants it, and the certificates into one file."""
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(text + b"".join(each.bytes() for each in certificate.cert_chain_pems))


def create_user(kafka: KafkaCluster, user: str, password: str) -> None:
    """Creates a user for SCRAM. Not by the broker's tools: their command lines can be read by all."""
    credentials = UserScramCredentialUpsertion(
        user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), password.encode()
    )
    admin = AdminClient(client_settings(kafka))  # kept: a request ends with its client
    for done in admin.alter_user_scram_credentials([credentials]).values():
        done.result(60)
