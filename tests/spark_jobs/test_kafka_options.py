"""Translation of Kafka settings into options of Spark's source."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.engine.kafka_options import java_settings, kafka_options
from stream.kafka.connection import KafkaCluster, KafkaSettingsError


def test_a_plain_address_needs_one_option() -> None:
    """Without extra settings Spark is told the address and nothing else."""
    assert kafka_options(KafkaCluster("broker:9092")) == {
        "groupIdPrefix": "freshet",
        "kafka.bootstrap.servers": "broker:9092",
    }


def test_credentials_become_a_login_module(tmp_path: Path) -> None:
    """librdkafka's SASL and TLS settings work for the Java client, and quotes in a password are escaped."""
    (tmp_path / "ca.pem").write_text("the authority")
    extra = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "freshet",
        "sasl.password": 'a"b\\c',
        "ssl.ca.location": str(tmp_path / "ca.pem"),
    }
    assert kafka_options(KafkaCluster("broker:9093", extra, "team")) == {
        "groupIdPrefix": "team",
        "kafka.bootstrap.servers": "broker:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.ssl.truststore.certificates": "the authority",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="freshet" password="a\\"b\\\\c";',
    }


def test_what_both_clients_know_is_passed_on() -> None:
    """A setting that needs no translation reaches Spark as it is."""
    assert java_settings({"client.id": "freshet", "enable.ssl.certificate.verification": "false"}) == {
        "client.id": "freshet",
        "ssl.endpoint.identification.algorithm": "",
    }


@pytest.mark.parametrize(
    ("extra", "found"),
    [
        ({"ssl.endpoint.identification.algorithm": "none"}, ""),
        ({"ssl.endpoint.identification.algorithm": "https"}, "https"),
        ({"ssl.endpoint.identification.algorithm": "https", "enable.ssl.certificate.verification": "false"}, ""),
        ({"enable.ssl.certificate.verification": "false", "ssl.endpoint.identification.algorithm": "https"}, ""),
    ],
)
def test_a_brokers_name_is_checked_as_librdkafka_does(extra: dict[str, str], found: str) -> None:
    """Java knows no algorithm called none, and refuses each connection."""
    assert java_settings(extra) == {"ssl.endpoint.identification.algorithm": found}


def test_a_clients_own_certificate_is_sent_as_text(tmp_path: Path) -> None:
    """Executors need no file: chain and key are read here, from files or settings; a PKCS #12 file stays one."""
    (tmp_path / "own.pem").write_text("-----BEGIN PRIVATE KEY-----")
    extra = {"ssl.key.location": str(tmp_path / "own.pem"), "ssl.certificate.pem": "chain", "ssl.key.password": "p"}
    assert java_settings(extra) == {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": "-----BEGIN PRIVATE KEY-----",
        "ssl.keystore.certificate.chain": "chain",
        "ssl.key.password": "p",
    }
    assert java_settings({"ssl.keystore.location": "own.p12", "ssl.keystore.password": "p"}) == {
        "ssl.keystore.location": "own.p12",
        "ssl.keystore.password": "p",
        "ssl.keystore.type": "PKCS12",
    }


def test_a_key_store_of_another_kind_stays_one() -> None:
    """Java reads it by its own setting, which librdkafka does not know."""
    assert java_settings({"ssl.keystore.location": "own.jks", "ssl.keystore.type": "JKS"})["ssl.keystore.type"] == "JKS"


@pytest.mark.parametrize(("name", "text"), [("ssl.ca.location", None), ("ssl.key.pem", "-----BEGIN RSA PRIVATE KEY-")])
def test_a_certificate_that_spark_cannot_use_is_refused_without_its_text(
    tmp_path: Path, name: str, text: str | None
) -> None:
    """A directory, and a key that only librdkafka reads: an error that names the setting."""
    with pytest.raises(KafkaSettingsError, match=name) as refused:
        java_settings({name: str(tmp_path) if text is None else text})
    assert "RSA" not in str(refused.value)
