"""Translation of Kafka settings into options of Spark's source."""

from __future__ import annotations

from spark_jobs.kafka_options import java_settings, kafka_options
from stream.kafka.connection import KafkaCluster


def test_a_plain_address_needs_one_option() -> None:
    """Without extra settings Spark is told the address and nothing else."""
    assert kafka_options(KafkaCluster("broker:9092")) == {
        "groupIdPrefix": "freshet",
        "kafka.bootstrap.servers": "broker:9092",
    }


def test_credentials_become_a_login_module() -> None:
    """librdkafka's SASL and TLS settings work for the Java client, and quotes in a password are escaped."""
    extra = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "freshet",
        "sasl.password": 'a"b\\c',
        "ssl.ca.location": "ca.pem",
    }
    assert kafka_options(KafkaCluster("broker:9093", extra, "team")) == {
        "groupIdPrefix": "team",
        "kafka.bootstrap.servers": "broker:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.ssl.truststore.location": "ca.pem",
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
