"""``freshet backfill`` against a running source, with a live MariaDB and a live Kafka."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from freshet import cli
from stream.kafka.connection import KafkaCluster
from tests.bad_input.running import freshet_fails
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import Source
from tests.sources.mariadb.test_source import command, images, until

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Runs in an empty directory: everything is in the flags."""
    monkeypatch.chdir(tmp_path)


@contextmanager
def running(
    kafka: KafkaCluster, keyspace: str, source: Source, **environment: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A source as a process, killed at the end."""
    told = {"FRESHET_MARIADB_PASSWORD": source.settings.password, **environment}
    process = subprocess.Popen(command(kafka, keyspace, source), env=os.environ | told, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def asking(kafka: KafkaCluster, keyspace: str, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs the command and returns its JSON; the key "exit" is its exit code."""

    def ask(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        action, *rest = words
        code = cli.run(["backfill", action, keyspace, *rest, "--bootstrap", kafka.bootstrap, "--json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found | {"exit": code, "states": {each["table"]: each["state"] for each in found["tables"]}}

    return ask


def fill(source: Source, *tables: str, rows: int = 50) -> None:
    """Tables of numbered rows."""
    for table in tables:
        source.run(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)",
            f"INSERT INTO {table} SELECT seq, 1 FROM seq_1_to_{rows}",
        )


def test_tables_are_read_when_somebody_asks(
    kafka: KafkaCluster, keyspace_name: str, source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a setting nothing is read from the beginning; a table that is named is, and then every one."""
    fill(source, "t", "u")
    source.run("CREATE TABLE k (v INT)")
    names = {each: f"{source.database}.{each}" for each in "tuk"}
    ask = asking(kafka, keyspace_name, capsys)
    with running(kafka, keyspace_name, source):
        until(lambda: _published(kafka, keyspace_name), "described")
        assert ask("status")["states"] == {names["t"]: "off", names["u"]: "off", names["k"]: "unfit"}
        started = ask("start", "t", "--follow")
        assert (started["exit"], started["taken"], started["states"]) == (0, True, {names["t"]: "complete"})
        assert ask("status")["states"][names["u"]] == "off"
        assert images(kafka, keyspace_name) == source.selected("t")
        assert ask("start", "--follow")["states"] == dict.fromkeys(names.values(), "complete") | {names["k"]: "unfit"}
        assert images(kafka, keyspace_name) == source.selected("t") | source.selected("u")
        missing = freshet_fails("backfill", "start", keyspace_name, "x", "--bootstrap", kafka.bootstrap)
        assert "no table x is published" in missing
        assert "no primary key" in freshet_fails(
            "backfill", "start", keyspace_name, "k", "--bootstrap", kafka.bootstrap
        )


@pytest.mark.nightly
def test_a_cancelled_table_goes_on_over_a_kill_when_it_is_started_again(
    kafka: KafkaCluster, keyspace_name: str, source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was asked is in the topic: a killed source knows it, and one that is down finds it when it starts."""
    fill(source, "t", rows=30_000)
    name = f"{source.database}.t"
    ask = asking(kafka, keyspace_name, capsys)
    slow = {f"FRESHET_KEYSPACES__{keyspace_name}__SOURCE__BACKFILL_ROWS_PER_S": "500"}  # a minute
    with running(kafka, keyspace_name, source, **slow) as process:
        until(lambda: _published(kafka, keyspace_name), "described")
        ask("start", "t")

        def has_begun() -> bool:
            return bool(ask("status")["tables"][0]["rows"])

        until(has_begun, "rows")
        assert ask("cancel", "t")["states"] == {name: "cancelled"}
        read = ask("status")["tables"][0]["rows"]
        assert 0 < read < 30_000
        process.send_signal(signal.SIGKILL)
        process.wait()
    later = ask("start", "t", "--follow")
    assert (later["exit"], later["taken"]) == (1, False)
    with running(kafka, keyspace_name, source):
        assert ask("status", "t", "--follow")["states"] in ({name: "cancelled"}, {name: "complete"})
        until(lambda: ask("status")["states"] == {name: "complete"}, "complete")
        assert images(kafka, keyspace_name) == source.selected("t")


def test_a_keyspace_of_which_nothing_is_published_is_refused(kafka: KafkaCluster, keyspace_name: str) -> None:
    """The command says what is missing instead of waiting for it."""
    assert "topic_missing" in freshet_fails("backfill", "status", keyspace_name, "--bootstrap", kafka.bootstrap)


def _published(kafka: KafkaCluster, keyspace: str) -> bool:
    """Whether the source has described its tables."""
    done = subprocess.run(
        [sys.executable, "-m", "freshet", "backfill", "status", keyspace, "--bootstrap", kafka.bootstrap, "--json"],
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
    )
    return done.returncode == 0 and bool(json.loads(done.stdout)["tables"])
