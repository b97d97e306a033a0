"""A broker that wants TLS and a user, or a certificate: for our clients and for Spark's, and no secret in any log."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import trustme

from spark_jobs.offsets import topic_bounds
from spark_jobs.rebuild import RebuildRequest, rebuild
from stream.kafka.connection import KafkaCluster, KafkaUnreachable
from tests.servers.secured import SecuredKafka, secured_kafka
from tests.spark_jobs.test_live_verify import consuming
from tests.spark_jobs.test_streaming import differences
from tests.spark_jobs.test_submitted import blocks, run
from tests.spark_jobs.topics import TestTopic, history

PASSWORD = 'a "quoted\\ secret'

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def secured() -> Iterator[SecuredKafka]:
    """The broker of this module."""
    with secured_kafka(PASSWORD) as started:
        yield started


def filled_topic(kafka: KafkaCluster, prefix: str) -> TestTopic:
    """A keyspace ``shop`` with a history, written over ``kafka``."""
    filled = TestTopic(dataclasses.replace(kafka, prefix=prefix), "shop", 2)
    filled.write(0, history(frames=12, partitions=2))
    filled.write(1, history(frames=5, partitions=2))
    return filled


@pytest.mark.nightly  # spark-submit fetches its packages
def test_a_job_is_submitted_over_tls_and_scram_and_tells_no_secret(secured: SecuredKafka, tmp_path: Path) -> None:
    """The consumer, verify and its rebuild; Spark's log at its usual level and its event log have no secret."""
    filled = filled_topic(secured.by_password, "scram")
    settings = {"bootstrap": filled.kafka.bootstrap, "prefix": "scram", "extra": dict(filled.kafka.extra)}
    (tmp_path / "freshet.toml").write_text(tomli_w.dumps({"kafka": settings}))
    events = tmp_path / "events"
    events.mkdir()
    [local, _] = blocks("docs/operating/rebuild.md")
    conf = "--conf spark.eventLog.enabled=true --conf spark.eventLog.compress=false "
    conf += f"--conf spark.eventLog.dir={events.as_uri()} --packages"
    with consuming(filled, tmp_path / "data", tmp_path / "freshet.toml"):
        done = run(local.replace("--packages", conf), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "shop: live and rebuilt: equal, byte for byte" in done.stdout
    assert differences(filled, tmp_path / "rebuilt", tmp_path / "live") == []
    logged = [each.read_text(errors="replace") for each in events.rglob("*") if each.is_file()]
    assert len(logged) >= 2
    assert "INFO" in done.stderr
    told = [done.stdout, done.stderr, *logged]
    for secret in (*secured.secrets, PASSWORD.replace("\\", "\\\\").replace('"', '\\"'), "quoted"):
        assert not any(secret in each for each in told)


def test_a_clients_certificate_is_enough(spark: Any, secured: SecuredKafka, tmp_path: Path) -> None:
    """A broker that asks for certificates: chain and key of librdkafka's settings serve the Java client too."""
    filled = filled_topic(secured.by_certificate, "mutual")
    rebuild(spark, RebuildRequest("shop", filled.kafka, tmp_path / "out"))
    assert differences(filled, tmp_path / "out", tmp_path / "live") == []


@pytest.mark.parametrize("wrong", ["password", "authority", "protocol"])
def test_wrong_security_settings_are_one_error_before_spark_starts(secured: SecuredKafka, wrong: str) -> None:
    """A wrong password, an unknown authority and no TLS at all: the error says where to look, and shows no value."""
    extra = dict(secured.by_password.extra)
    if wrong == "password":
        extra["sasl.password"] = "another"
    elif wrong == "authority":
        del extra["ssl.ca.location"]
        extra["ssl.ca.pem"] = trustme.CA().cert_pem.bytes().decode()
    else:
        extra["security.protocol"] = "PLAINTEXT"
    with pytest.raises(KafkaUnreachable) as refused:
        topic_bounds(dataclasses.replace(secured.by_password, extra=extra), "freshet.shop.events")
    assert "kafka.extra" in refused.value.hint
    assert "another" not in str(refused.value)
