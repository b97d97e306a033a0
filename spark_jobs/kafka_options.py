"""Translates librdkafka's client settings into options of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stream.kafka.connection import KafkaCluster

_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_RENAMED: Final = {"sasl.mechanisms": "sasl.mechanism"}
_CREDENTIALS: Final = {"sasl.username", "sasl.password"}


def kafka_options(kafka: KafkaCluster) -> dict[str, str]:
    """Options of Spark's Kafka source for ``kafka``.

    Both clients share most names. Translated are SASL user and password, the CA file (PEM) and
    ``enable.ssl.certificate.verification``. All others are passed on; the Java client ignores unknown ones. Spark
    redacts passwords in its logs.
    """
    settings = {"bootstrap.servers": kafka.bootstrap} | java_settings(kafka.extra)
    return {"groupIdPrefix": kafka.prefix, **{f"kafka.{name}": value for name, value in settings.items()}}


def java_settings(extra: Mapping[str, str]) -> dict[str, str]:
    """librdkafka settings translated for the Java client."""
    found: dict[str, str] = {}
    for name, value in extra.items():
        if name == "ssl.ca.location":
            found |= {"ssl.truststore.location": value, "ssl.truststore.type": "PEM"}
        elif name == "enable.ssl.certificate.verification":
            if value.lower() == "false":
                found["ssl.endpoint.identification.algorithm"] = ""
        elif name == "security.protocol":
            found[name] = value.upper()
        elif name not in _CREDENTIALS:
            found[_RENAMED.get(name, name)] = value
    if extra.keys() >= _CREDENTIALS:
        mechanism = found.setdefault("sasl.mechanism", "PLAIN").upper()
        module = _LOGIN_MODULES.get(mechanism, _LOGIN_MODULES["PLAIN"])
        user, password = _quoted(extra["sasl.username"]), _quoted(extra["sasl.password"])
        found["sasl.jaas.config"] = f"{module} required username={user} password={password};"
    return found


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
