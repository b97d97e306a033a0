"""A running source, from a live MariaDB into a live Kafka, through crashes, outages and lost history."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import SEEK_END, BytesIO
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from fastavro import parse_schema, schemaless_writer
from structlog.testing import capture_logs

from freshet.local.kafka import KafkaServer
from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.topics import ensure_topics, events_topic
from stream.publish.publisher import Publisher
from stream.publish.resume import resume_point
from stream.sources.mariadb.backfill.run import BackfillOptions
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.source import MariaDBSource, SourceOptions
from stream.wire.batch import BatchLimits
from stream.wire.codec import header_of
from stream.wire.events import VALUE, RowChange
from stream.wire.keys import Layout
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import Source, settings_of
from tests.stream.committed import last_position, markers, records, rows
from tokens.errors import FreshetError

PARTITIONS = 3
ROOT = Path(__file__).resolve().parents[3]


class Running:
    """A source in a thread."""

    def __init__(self, kafka: KafkaCluster, keyspace: str, source: Source, **options: Any) -> None:
        self.ready = threading.Event()
        tables = options.pop("tables", TableFilter((source.database,)))
        server_id = 50_000 + int(time.monotonic() * 1000) % 10_000_000
        chosen = SourceOptions(source.settings, f"{keyspace}/0", tables, server_id=server_id, **options)

        def publisher() -> Publisher:
            ensure_topics(kafka, keyspace, PARTITIONS)
            return Publisher(
                kafka,
                keyspace,
                f"{keyspace}/0",
                Layout(PARTITIONS),
                batch_interval_s=0.01,
                limits=BatchLimits(batch_bytes=20_000),
            )

        self.source = self.made(chosen, publisher)
        self.pool = ThreadPoolExecutor(1)
        self.future = self.pool.submit(self.source.run)

    def made(self, options: SourceOptions, publisher: Callable[[], Publisher]) -> MariaDBSource:
        """The source."""
        return MariaDBSource(options, publisher, lambda _: self.ready.set())

    def __enter__(self) -> Self:
        until(lambda: self.ready.is_set() or self.future.done(), "ready")
        if self.future.done():
            self.future.result()
        return self

    def __exit__(self, *_: object) -> None:
        self.source.stop()
        self.future.result(timeout=PATIENCE_S)
        self.pool.shutdown()


def until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Poll until ``condition`` is true, or fail after ``timeout_s``. What takes long to ask is asked less often."""
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if condition():
            return
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(max(0.02, time.monotonic() - began))


def command(kafka: KafkaCluster, keyspace: str, source: Source) -> list[str]:
    """The command line that runs the source as a separate process."""
    at = source.settings
    words = "-m freshet.cli source mariadb --keyspace {} --host {} --port {} --user {} --database {} --bootstrap {}"
    named = words.format(keyspace, at.host, at.port, at.user, source.database, kafka.bootstrap)
    return [sys.executable, *named.split(), "--partitions", str(PARTITIONS), "--server-id", "77123"]


def published(kafka: KafkaCluster, keyspace: str) -> str:
    """The last marker's position."""
    return last_position(kafka, keyspace)


def images(kafka: KafkaCluster, keyspace: str) -> dict[bytes, bytes]:
    """The last image of each key in the topic; deleted ones are left out."""
    last = {key: image for _, key, image, _ in sorted(rows(records(kafka, keyspace, PARTITIONS)))}
    return {key: image for key, image in last.items() if image}


def of_kind(kafka: KafkaCluster, keyspace: str, kind: str) -> list[dict[str, Any]]:
    """The events of a kind in the first partition; those that are said again once."""
    found = [record for name, record in records(kafka, keyspace, PARTITIONS)[0] if name == kind]
    return list({(record["epoch"], record["ordinal"]): record for record in found}.values())


def test_what_is_committed_is_published_and_described(kafka: KafkaCluster, keyspace_name: str, source: Source) -> None:
    """Tables are described once, then rows are published, and a restart repeats nothing."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    with Running(kafka, keyspace_name, source):
        source.run("INSERT INTO t VALUES (1, 1), (2, 2)", "DELETE FROM t WHERE id = 2")
        until(lambda: published(kafka, keyspace_name) == source.position(), "first rows")
    with Running(kafka, keyspace_name, source):
        source.run("UPDATE t SET v = 5")
        until(lambda: published(kafka, keyspace_name) == source.position(), "second rows")
    assert images(kafka, keyspace_name) == source.selected("t")
    assert len(rows(records(kafka, keyspace_name, PARTITIONS))) == 4
    assert [found["table"] for found in of_kind(kafka, keyspace_name, "TableSchema")] == [f"{source.database}.t"]
    assert of_kind(kafka, keyspace_name, "TableVoid") == []


def test_another_choice_of_tables_voids_what_it_must(kafka: KafkaCluster, keyspace_name: str, source: Source) -> None:
    """More tables void themselves alone; fewer void everything once, because excluded tables may have changed."""
    only_t, t, u = TableFilter((source.database,), ("*.t",)), f"{source.database}.t", f"{source.database}.u"
    source.run("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE u (id INT PRIMARY KEY)")
    with Running(kafka, keyspace_name, source, tables=only_t):
        source.run("INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)")
        until(lambda: published(kafka, keyspace_name) == source.position(), "rows")
    assert images(kafka, keyspace_name) == source.selected("t")

    def tables(kind: str) -> list[str]:
        return [found["table"] for found in of_kind(kafka, keyspace_name, kind)]

    with Running(kafka, keyspace_name, source):
        until(lambda: tables("TableSchema") == [t, u], "the description of the table that was added")
        source.run("INSERT INTO u VALUES (2)")
        until(lambda: published(kafka, keyspace_name) == source.position(), "rows")
    assert tables("TableVoid") == [u]
    assert len(images(kafka, keyspace_name)) == 2
    source.run("INSERT INTO u VALUES (3)")
    with Running(kafka, keyspace_name, source, tables=only_t):
        until(lambda: tables("TableSchema") == [t, u, t], "descriptions")
    assert tables("TableVoid") == [u, "*", t]  # the server was ahead, so t is known and described behind that
    source.run("INSERT INTO u VALUES (4)")
    with Running(kafka, keyspace_name, source):
        until(lambda: tables("TableSchema") == [t, u, t, u], "the description behind what was not published")
    assert tables("TableVoid") == [u, "*", t, u]
    assert len(images(kafka, keyspace_name)) == 2


def as_version_1(state: dict[str, Any]) -> bytes:
    """The state after ``state`` in version 1, which kept the choice of tables in the map of open transactions."""
    schema = json.loads((ROOT / "schemas" / "SourceState.v1.avsc").read_text())
    opened = [{"txn": state["table_choice"], "write_ids": [], "seen_open": True, "wrote": []}]
    out = BytesIO(header_of(schema))
    out.seek(0, SEEK_END)
    schemaless_writer(
        out, parse_schema(schema), state | {"sequence": state["sequence"] + 1, "whole": True, "opened": opened}
    )
    return out.getvalue()


def test_it_resumes_from_a_version_1_state_without_describing_again(
    kafka: KafkaCluster, keyspace_name: str, source: Source
) -> None:
    """An update of the program voids nothing, because the choice of tables is read from a version 1 state too."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    shard = f"{keyspace_name}/0"
    with Running(kafka, keyspace_name, source):
        source.run("INSERT INTO t VALUES (1)")
        until(lambda: published(kafka, keyspace_name) == source.position(), "first row")
    home = Layout(PARTITIONS).home_partition(shard)
    states = [fields for name, fields in records(kafka, keyspace_name, PARTITIONS)[home] if name == "SourceState"]
    producer = Producer(client_settings(kafka))
    producer.produce(events_topic(kafka, keyspace_name), as_version_1(states[-1]), partition=home)
    assert producer.flush(30) == 0
    with Running(kafka, keyspace_name, source):
        source.run("INSERT INTO t VALUES (2)")
        until(lambda: published(kafka, keyspace_name) == source.position(), "second row")
    assert images(kafka, keyspace_name) == source.selected("t")
    assert len(of_kind(kafka, keyspace_name, "TableSchema")) == 1
    assert len(of_kind(kafka, keyspace_name, "EpochStart")) == 1
    assert of_kind(kafka, keyspace_name, "TableVoid") == []
    with Running(kafka, keyspace_name, source, tables=TableFilter((source.database,), ("*.t",))):
        until(lambda: len(of_kind(kafka, keyspace_name, "TableSchema")) == 2, "another choice")
    states = [fields for name, fields in records(kafka, keyspace_name, PARTITIONS)[home] if name == "SourceState"]
    point = resume_point(states)
    assert (bool(point.table_choice), point.open_transactions) == (True, {}), "the entry of version 1 is removed"


def test_killed_at_any_instant_it_publishes_every_change_once(
    kafka: KafkaCluster, keyspace_name: str, source: Source, mariadb: MariaDBAddress
) -> None:
    """After kill -9 under load, also inside giant transactions, the topic has every change of the binlog once."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    source.begin()
    environment = os.environ | {
        "FRESHET_MARIADB_PASSWORD": mariadb.password,
        "FRESHET_PUBLISHER__BATCH_BYTES": "16384",
        "FRESHET_LOG__FORMAT": "json",
        "FRESHET_PUBLISHER__BATCH_INTERVAL_MS": "5",
    }

    def write(number: int) -> None:
        size = 3000 if number % 4 == 0 else 3
        source.run(f"REPLACE INTO t SELECT seq, {number} FROM seq_1_to_{size}", f"DELETE FROM t WHERE id = {number}")

    for number in range(6):
        process = subprocess.Popen(
            command(kafka, keyspace_name, source), env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        line = ""
        while '"ready"' not in line:
            line = process.stderr.readline()
            assert line, f"exit code {process.wait()}"
        for _ in range(3):
            write(number * 3)
            write(number * 3 + 1)
        if number < 5:
            time.sleep(0.02 * number)  # the instant of the kill is what is varied
            process.kill()
        else:
            until(lambda: published(kafka, keyspace_name) == source.position(), "everything")
            process.send_signal(signal.SIGTERM)
        process.stderr.read()
        code = process.wait(timeout=PATIENCE_S)
    assert code == 0
    expected = [
        (change.key, change.image, transaction.gtid)
        for transaction in source.transactions()
        for change in transaction.changes
        if isinstance(change, RowChange)
    ]
    found = rows(records(kafka, keyspace_name, PARTITIONS))
    assert [(key, image, gtid) for _, key, image, gtid in found] == expected
    assert [ordinal for ordinal, *_ in found] == list(range(found[0][0], found[0][0] + len(found)))


def test_it_waits_for_an_unreachable_mariadb_and_continues(
    kafka: KafkaCluster, keyspace_name: str, new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """After kill and restart of MariaDB nothing is lost and no new epoch starts."""
    server = new_mariadb(durable=True)
    source = source_of(server.address, "d")
    source.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with Running(kafka, keyspace_name, source) as running:
        source.run("INSERT INTO t VALUES (2)")
        running.ready.clear()
        server.kill()
        server.restart()
        again = source_of(server.address, "d")
        again.run("INSERT INTO t VALUES (3)")
        until(lambda: published(kafka, keyspace_name) == again.position(), "rows after the restart")
    assert set(images(kafka, keyspace_name)) == {b"d.t\0[2]", b"d.t\0[3]"}
    assert len({marker["epoch"] for marker in markers(records(kafka, keyspace_name, PARTITIONS))}) == 1


def test_it_waits_for_an_unreachable_kafka_and_continues(
    keyspace_name: str, source: Source, new_kafka: Callable[..., KafkaServer]
) -> None:
    """After kill and restart of Kafka every change is in the topic once."""
    broker = new_kafka()
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with Running(broker.cluster, keyspace_name, source):
        source.run("INSERT INTO t VALUES (1)")
        until(lambda: published(broker.cluster, keyspace_name) == source.position(), "first row")
        broker.kill()
        source.run("INSERT INTO t VALUES (2)")
        broker.restart()
        source.run("INSERT INTO t VALUES (3)")
        until(lambda: published(broker.cluster, keyspace_name) == source.position(), "rows after the restart")
    found = rows(records(broker.cluster, keyspace_name, PARTITIONS))
    assert [key.partition(b"\0")[2] for _, key, _, _ in found] == [b"[1]", b"[2]", b"[3]"]


def test_a_replaced_history_starts_a_new_epoch(
    kafka: KafkaCluster, keyspace_name: str, new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """If the server lacks published transactions, a new epoch starts at the server's position."""
    first = source_of(new_mariadb(durable=False).address, "d")
    first.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with Running(kafka, keyspace_name, first):
        first.run(*[f"INSERT INTO t VALUES ({number})" for number in range(20)])
        until(lambda: published(kafka, keyspace_name) == first.position(), "rows")
    second = source_of(new_mariadb(durable=False, server_id=2).address, "d")
    second.run("CREATE TABLE t (id INT PRIMARY KEY)")
    with Running(kafka, keyspace_name, second):
        second.run("INSERT INTO t VALUES (99)")
        until(lambda: published(kafka, keyspace_name) == second.position(), "rows of the new history")
    begun = of_kind(kafka, keyspace_name, "EpochStart")
    assert [found["reason"] for found in begun] == ["first_start", "history_lost"]
    assert markers(records(kafka, keyspace_name, PARTITIONS))[-1]["epoch"] == begun[1]["epoch"] > begun[0]["epoch"]


def test_a_database_that_does_not_exist_is_refused_before_the_topics_are_made(
    kafka: KafkaCluster, keyspace_name: str, source: Source
) -> None:
    """A misspelt database would be ready and publish nothing; the partitions of its topic could not be changed."""
    with (
        pytest.raises(FreshetError, match="has no database misspelt") as caught,
        Running(kafka, keyspace_name, source, tables=TableFilter(("misspelt",))),
    ):
        pass
    assert caught.value.code == "unknown_database"
    assert events_topic(kafka, keyspace_name) not in AdminClient(client_settings(kafka)).list_topics(timeout=30).topics
    both = TableFilter((source.database, "misspelt"))
    with pytest.raises(FreshetError, match="misspelt"), Running(kafka, keyspace_name, source, tables=both):
        pass


def test_what_is_chosen_and_not_published_is_named_before_it_is_ready(
    kafka: KafkaCluster, keyspace_name: str, source: Source
) -> None:
    """Tables without a key, patterns without a table: one warning each. The topic has the scope."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE nokey (v INT)")
    chosen = TableFilter((source.database,), (f"{source.database}.*", "shop.misspelt"))
    with capture_logs() as logs, Running(kafka, keyspace_name, source, tables=chosen):
        pass
    found = {entry["event"]: entry for entry in logs if entry["log_level"] == "warning"}
    assert found["table is always read through"]["table"] == f"{source.database}.nokey"
    assert found["no table matches"]["include"] == "shop.misspelt"
    (scope,) = of_kind(kafka, keyspace_name, "Scope")
    assert scope["tables"] == [source.database, f"{source.database}.*", "shop.misspelt"]
    described = of_kind(kafka, keyspace_name, "TableSchema")
    assert {each["table"].split(".")[1]: each["cacheable"] for each in described} == {"t": True, "nokey": False}


def test_statement_format_is_refused_with_the_fix(kafka: KafkaCluster, keyspace_name: str, source: Source) -> None:
    """With a refused setting the command prints error and hint and ends with exit code 1."""
    source.run("SET GLOBAL binlog_format = MIXED")
    try:
        done = subprocess.run(
            command(kafka, keyspace_name, source),
            env=os.environ | {"FRESHET_MARIADB_PASSWORD": source.settings.password, "FRESHET_LOG__FORMAT": "json"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        source.run("SET GLOBAL binlog_format = ROW")
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert lines[0].startswith("error[bad_server_settings]: binlog_format is MIXED")
    assert lines[1].startswith("hint: SET GLOBAL binlog_format = ROW")
    assert "Traceback" not in done.stderr
    assert all(json.loads(line) for line in done.stderr.splitlines() if line.startswith("{"))


def test_a_partly_published_transaction_that_differs_now_voids_everything() -> None:
    """If a partly published transaction has other events now, everything after the skipped ones is void."""
    from stream.sources.mariadb.binlog.progress import Progress
    from stream.wire.events import ResumePoint, RowChange, SourceTransaction, VoidTable

    point = ResumePoint("s", 1, 10, "MariaDB/0-1-1", 0, "", partial_gtid="MariaDB/0-1-2", partial_events=3)
    plain = SourceTransaction(
        "MariaDB/0-1-2", "MariaDB/0-1-2", 0, [RowChange(b"t\0[%d]" % n, VALUE, b"{}") for n in range(9)]
    )
    assert Progress(point).aligned(plain, choice=0) is plain
    otherwise = SourceTransaction("MariaDB/0-1-2", "MariaDB/0-1-2", 0, [VoidTable("t", "schema")])
    fitted = Progress(point).aligned(otherwise, choice=0)
    left = list(fitted.changes)[3:]
    assert [change.table for change in left if isinstance(change, VoidTable)] == ["*"]


def test_the_named_grants_suffice(kafka: KafkaCluster, keyspace_name: str, source: Source) -> None:
    """The grants in the hint are all that a source needs, and without them the source names them."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE OR REPLACE USER few@'%' IDENTIFIED BY 'few'")
    source.settings = replace(source.settings, user="few", password="few")
    with pytest.raises(FreshetError) as caught, Running(kafka, keyspace_name, source):
        pass
    assert "BINLOG MONITOR" in caught.value.hint
    source.run("GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO few@'%'")
    with Running(kafka, keyspace_name, source):
        source.run("INSERT INTO t VALUES (1)")
        until(lambda: images(kafka, keyspace_name) == source.selected("t"), "the row")
    source.run("DROP USER few@'%'")


def test_a_wrong_login_is_an_error_and_not_an_outage(kafka: KafkaCluster, keyspace_name: str, source: Source) -> None:
    """A wrong login ends the source instead of being retried."""
    settings = settings_of(source.settings)
    wrong = SourceOptions(
        type(settings)(settings.host, settings.port, "nobody", "wrong"), f"{keyspace_name}/0", TableFilter()
    )

    def publisher() -> Publisher:
        ensure_topics(kafka, keyspace_name, PARTITIONS)
        return Publisher(kafka, keyspace_name, f"{keyspace_name}/0", Layout(PARTITIONS))

    with pytest.raises(Exception, match="refused the login"):
        MariaDBSource(wrong, publisher).run()


def test_a_restarted_source_reads_no_whole_table_again(kafka: KafkaCluster, keyspace_name: str, source: Source) -> None:
    """What was there before is published once; a restart finds in the topic which tables are complete."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    backfill = BackfillOptions(TableFilter())
    for _ in range(2):
        with Running(kafka, keyspace_name, source, backfill=backfill) as running:
            until(lambda: len(of_kind(kafka, keyspace_name, "TableBackfill")) == 2, "complete")
            until(lambda: running.source.status.tables_complete == 1, "known to be complete")
    assert [each["complete"] for each in of_kind(kafka, keyspace_name, "TableBackfill")] == [False, True]
    assert images(kafka, keyspace_name) == source.selected("t")
