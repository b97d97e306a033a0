"""Translates librdkafka's client settings into options of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stream.kafka.connection import KafkaCluster, KafkaSettingsError

_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_RENAMED: Final = {"sasl.mechanisms": "sasl.mechanism"}
_IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
"""How a broker's name is checked. What librdkafka calls ``none`` is empty for Java."""
_CREDENTIALS: Final = {"sasl.username", "sasl.password"}
_CERTIFICATES: Final = {
    "ssl.ca": "certificates",
    "ssl.certificate": "certificate.chain",
    "ssl.key": "key",
}
"""A certificate or key, ``….location`` or ``….pem`` of librdkafka, and its name in the Java client's store."""


def kafka_options(kafka: KafkaCluster) -> dict[str, str]:
    """Options of Spark's Kafka source for ``kafka``.

    Both clients share most names. Translated are SASL user and password, how a broker's certificate and name are
    checked, and the certificates of the authority and of the client: their files are read here, since executors may not
    have them. Others are passed on; the Java client ignores unknown ones. Spark and Kafka redact them in their logs.

    Raises `KafkaSettingsError` if a file can't be read, or is in no form that Java takes.
    """
    settings = {"bootstrap.servers": kafka.bootstrap} | java_settings(kafka.extra)
    return {"groupIdPrefix": kafka.prefix, **{f"kafka.{name}": value for name, value in settings.items()}}


def java_settings(extra: Mapping[str, str]) -> dict[str, str]:
    """librdkafka settings translated for the Java client. Raises `KafkaSettingsError`."""
    found: dict[str, str] = {}
    for name, value in extra.items():
        part, _, form = name.rpartition(".")
        if part in _CERTIFICATES and form in ("location", "pem"):
            text = value if form == "pem" else _file(name, value)
            if part == "ssl.key":
                _check_key(name, text)
            store = "truststore" if part == "ssl.ca" else "keystore"
            found |= {f"ssl.{store}.{_CERTIFICATES[part]}": text, f"ssl.{store}.type": "PEM"}
        elif name == "enable.ssl.certificate.verification":
            if value.lower() == "false":
                found[_IDENTIFICATION] = ""
        elif name == _IDENTIFICATION:
            found.setdefault(name, "" if value.lower() == "none" else value)
        elif name == "security.protocol":
            found[name] = value.upper()
        elif name not in _CREDENTIALS:
            found[_RENAMED.get(name, name)] = value
    if "ssl.keystore.location" in found:
        found.setdefault("ssl.keystore.type", "PKCS12")
    if extra.keys() >= _CREDENTIALS:
        mechanism = found.setdefault("sasl.mechanism", "PLAIN").upper()
        module = _LOGIN_MODULES.get(mechanism, _LOGIN_MODULES["PLAIN"])
        user, password = _quoted(extra["sasl.username"]), _quoted(extra["sasl.password"])
        found["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    return found


def _file(name: str, path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise KafkaSettingsError(
            f"kafka.extra: {name} can't be read by this process: {error}",
            hint="give a PEM file; Spark's client takes no directory of certificates",
        ) from error


def _check_key(name: str, text: str) -> None:
    if "BEGIN PRIVATE KEY" not in text and "BEGIN ENCRYPTED PRIVATE KEY" not in text:
        raise KafkaSettingsError(
            f"kafka.extra: {name} holds no private key in the form PKCS #8, the only one that Spark's client takes",
            hint="convert it: openssl pkcs8 -topk8 -in key.pem -out key8.pem",
        )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
