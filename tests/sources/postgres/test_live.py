"""A running source of PostgreSQL, beside what SELECT says: the same rows, and void is what can't be carried."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from stream.kafka.topics import ensure_topics
from stream.sources.mariadb.by_key import SelectedRow
from stream.sources.mariadb.snapshot import SnapshotRead
from stream.sources.postgres.snapshot import PostgresSnapshotReader
from tests.sources.debezium.conftest import cached_images
from tests.sources.mariadb.test_source import PARTITIONS, images, of_kind, until
from tests.sources.postgres.conftest import Database, RunningPostgres
from tests.stream.committed import last_position, records, rows
from tokens import Position
from tokens.errors import FreshetError

TYPED = """CREATE TABLE typed (id BIGINT PRIMARY KEY, b BOOL, si SMALLINT, r REAL, d FLOAT8, n NUMERIC,
 n2 NUMERIC(12,3), tx TEXT, ch CHAR(5), ba BYTEA, dt DATE, tm TIME, tm3 TIME(3), ts TIMESTAMP,
 ts3 TIMESTAMP(3), tsz TIMESTAMPTZ, tsz0 TIMESTAMPTZ(0), u UUID, j JSON, jb JSONB, m mood)"""
EXTREMES = """INSERT INTO typed VALUES (-9223372036854775808, true, -32768, 1.1, 1.7976931348623157e308,
 12345678901234567890.1234567890, -1.5, 'naïve \ufffd ☃', 'ab', '\\x00ff', '0001-01-01', '24:00:00', '12:34:56.789',
 '9999-12-31 23:59:59.999999', '1970-01-01', '1970-01-01 02:00+02', '2024-02-29 00:00:00.4Z',
 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '{"b": 1,  "b":[1.0]}', '{"b": 1,  "a":[1.0]}', 'ok')"""
IMAGE = (
    '{"id":-9223372036854775808,"b":1,"si":-32768,"r":1.100000023841858,"d":1.7976931348623157e+308,'
    '"n":"12345678901234567890.1234567890","n2":"-1.500","tx":"naïve \ufffd ☃","ch":"ab   ","ba":{"base64":"AP8="},'
    '"dt":"0001-01-01","tm":"24:00:00.000000","tm3":"12:34:56.789","ts":"9999-12-31 23:59:59.999999",'
    '"ts3":"1970-01-01 00:00:00.000","tsz":"1970-01-01 00:00:00.000000","tsz0":"2024-02-29 00:00:00",'
    '"u":"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11","j":"{\\"b\\": 1,  \\"b\\":[1.0]}",'
    '"jb":"{\\"a\\": [1.0], \\"b\\": 1}","m":"ok"}'
)


@pytest.fixture
def writing(database: Database, keyspace_name: str) -> Iterator[RunningPostgres]:
    """A running source of tables that each have a row: else they would have no topic."""
    database.run(
        "CREATE TABLE t (id INT PRIMARY KEY, v TEXT, n NUMERIC(10,2))",
        "CREATE TABLE u (a INT, b VARCHAR(10), PRIMARY KEY (b, a))",
        "ALTER TABLE u REPLICA IDENTITY FULL",
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        TYPED,
        "INSERT INTO t VALUES (0, 'there before', 0)",
        "INSERT INTO u VALUES (0, 'x')",
        "INSERT INTO typed (id) VALUES (0)",
    )
    database.create()
    with RunningPostgres(database, keyspace_name) as running:
        running.until_published(database.position())
        yield running


def key(table: str, values: str) -> bytes:
    """A row's key."""
    return f"public.{table}\0[{values}]".encode()


def void_tables(database: Database, keyspace: str) -> set[str]:
    """The tables that were void at any time, but for a log that moved on while they were described at the start."""
    voids = of_kind(database.kafka, keyspace, "TableVoid")
    return {each["table"] for each in voids if each["reason"] != "its schema is known from here on"}


def test_it_publishes_what_is_committed(database: Database, writing: RunningPostgres, keyspace_name: str) -> None:
    """Rows of all kinds of statements and types arrive once, at the place where their commit ends."""
    before = database.position()
    database.run("BEGIN", "INSERT INTO t VALUES (1, 'new', 1)", "INSERT INTO u VALUES (1, 'b')", "SAVEPOINT here")
    database.run("INSERT INTO u VALUES (2, 'taken back')", "ROLLBACK TO here", "UPDATE t SET v = 'b' WHERE id = 0")
    database.run("UPDATE t SET id = 100 WHERE id = 1", "COMMIT")
    after = database.position()  # a heartbeat may have its commit in between
    database.run("DELETE FROM u WHERE b = 'x'", EXTREMES, "INSERT INTO typed (id) VALUES (2)")
    writing.until_published(database.position())
    found = rows(records(database.kafka, keyspace_name, PARTITIONS))
    first = found[0][3]
    assert Position.parse(first).contains(Position.parse(before))
    assert Position.parse(after).contains(Position.parse(first))
    assert [(k, image) for _, k, image, gtid in found if gtid == first] == [
        (key("t", "0"), b'{"id":0,"v":"b","n":"0.00"}'),
        (key("t", "100"), b'{"id":100,"v":"new","n":"1.00"}'),
        (key("t", "1"), b""),
        (key("u", '"b",1'), b'{"a":1,"b":"b"}'),
    ]
    last = images(database.kafka, keyspace_name)
    assert last[key("typed", "-9223372036854775808")].decode() == IMAGE
    assert last[key("typed", "2")].startswith(b'{"id":2,"b":null,"si":null')
    assert key("u", '"x",0') not in last
    assert void_tables(database, keyspace_name) == set()


def test_what_a_message_does_not_tell_is_void(database: Database, writing: RunningPostgres, keyspace_name: str) -> None:
    """A long value that an UPDATE leaves alone, infinities, and dates before the first year are no images."""
    database.run("INSERT INTO t SELECT 7, string_agg(md5(g::text), ''), 1 FROM generate_series(1, 400) g")
    database.run("INSERT INTO u VALUES (7, 'full')", "UPDATE t SET n = 2 WHERE id = 7")
    for number, column, value in (
        (11, "dt", "infinity"),
        (12, "ts", "-infinity"),
        (13, "tsz", "infinity"),
        (14, "dt", "0044-03-15 BC"),
        (15, "d", "NaN"),
        (16, "r", "-Infinity"),
        (17, "tsz", "12024-01-01"),
        (18, "n", "NaN"),
    ):
        database.run(f"INSERT INTO typed (id, {column}) VALUES ({number}, '{value}')")
    writing.until_published(database.position())
    found = {k: image for _, k, image, _ in rows(records(database.kafka, keyspace_name, PARTITIONS))}
    assert {found[key("typed", str(number))] for number in range(11, 19)} == {b""}
    assert found[key("t", "7")] == b""
    assert found[key("u", '"full",7')]


def test_truncate_and_ddl_void_the_table(database: Database, writing: RunningPostgres, keyspace_name: str) -> None:
    """The log tells no DDL: the catalog is asked before the position passes it, and then the new schema counts."""
    database.run(
        "BEGIN", "INSERT INTO t VALUES (1, 'x', 1)", "TRUNCATE t", "INSERT INTO t VALUES (2, 'y', 1)", "COMMIT"
    )
    writing.until_published(database.position())
    assert void_tables(database, keyspace_name) == {"public.t"}
    database.run("ALTER TABLE u ADD COLUMN extra TEXT DEFAULT 'd'")
    writing.until_published(database.position())
    assert void_tables(database, keyspace_name) == {"public.t", "public.u"}
    database.run("INSERT INTO u VALUES (5, 'b', 'e')")
    writing.until_published(database.position())
    assert images(database.kafka, keyspace_name)[key("u", '"b",5')] == b'{"a":5,"b":"b","extra":"e"}'
    for rewriting in (
        "ALTER TABLE u ALTER extra TYPE TEXT USING upper(extra)",
        "ALTER TABLE u DROP extra, ADD extra TEXT",
    ):
        number = len(of_kind(database.kafka, keyspace_name, "TableVoid"))
        database.run(rewriting)
        writing.until_published(database.position())
        assert len(of_kind(database.kafka, keyspace_name, "TableVoid")) > number
    database.run("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    writing.until_published(database.position())
    assert void_tables(database, keyspace_name) == {"public.t", "public.u", "public.typed"}


def test_an_idle_database_is_at_its_end(database: Database, writing: RunningPostgres) -> None:
    """Its log grows without commits of its tables, and a session that knows that place must be answered."""
    database.run("CHECKPOINT", "CREATE TABLE elsewhere (id INT)", "SELECT pg_switch_wal()", "CHECKPOINT")
    position = database.position()
    writing.until_published(position)
    until(lambda: writing.source.status.as_of_ms > 0, "the server's clock is known")
    assert Position.parse(position).flavor == "Postgres"


def test_a_connector_starts_again_after_an_idle_time(database: Database, keyspace_name: str) -> None:
    """Its slot may not pass its own offset, as the driver's answers make it: Debezium refuses to go on, for good."""
    database.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (0, 0)")
    database.create()
    with RunningPostgres(database, keyspace_name) as running:
        running.until_published(database.position())
        epoch = running.source.status.epoch
        for number in range(2):  # the log moves on, and so does the place from which the slot needs it
            database.run(f"CREATE TABLE elsewhere{number} (id INT)", "SELECT pg_switch_wal()", "CHECKPOINT")
            running.until_published(database.position())
        database.connect.halt(database.connector)
        until(lambda: not database.streams(), "the connector has left")
        database.connect.resume(database.connector)
        database.connect.await_task(database.connector)
        until(database.streams, "the connector streams")
        database.run("INSERT INTO t VALUES (1, 1)")
        running.until_published(database.position())
        assert running.source.status.epoch == epoch
    assert images(database.kafka, keyspace_name)[key("t", "1")] == b'{"id":1,"v":1}'


def test_a_source_that_is_started_again_goes_on(database: Database, keyspace_name: str) -> None:
    """Nothing is lost and nothing comes twice, also of what was committed meanwhile; the epoch stays."""
    database.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (0, 0)")
    database.create()
    epochs = set()
    for n in range(1, 4):
        with RunningPostgres(database, keyspace_name) as running:
            epochs.add(running.source.status.epoch)
            running.until_published(database.position())
            database.run(f"INSERT INTO t VALUES ({n}, {n})", f"UPDATE t SET v = v + 1 WHERE id = {n}")
            running.until_published(database.position())
        database.run(f"INSERT INTO t VALUES ({100 + n}, 0)")
    with RunningPostgres(database, keyspace_name) as running:
        running.until_published(database.position())
        epochs.add(running.source.status.epoch)
    assert len(epochs) == 1
    found = rows(records(database.kafka, keyspace_name, PARTITIONS))
    assert [k for _, k, _, _ in found] == [key("t", str(n)) for m in (1, 2, 3) for n in (m, m, 100 + m)]
    assert void_tables(database, keyspace_name) == set()


def test_a_stop_right_after_ddl_voids_no_other_table_later(
    database: Database, keyspace_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is void by then is noted with it: who begins again is not to take all tables for rewritten."""
    monkeypatch.setattr("stream.sources.debezium.source._ANNOTATE_EVERY_S", 3_600.0)
    database.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (0, 0)")
    database.create()
    with RunningPostgres(database, keyspace_name) as running:
        running.until_published(database.position())
        until(lambda: running.source._told != "", "the places are noted for the first time")
        database.run("CREATE TABLE elsewhere (id INT PRIMARY KEY)")
        until(lambda: void_tables(database, keyspace_name) == {"public.elsewhere"}, "the new table is void")
        database.run("INSERT INTO t VALUES (1, 1)")  # what is noted is in the state with the next transaction
        running.until_published(database.position())
    number = len(of_kind(database.kafka, keyspace_name, "TableVoid"))
    with RunningPostgres(database, keyspace_name) as running:
        running.until_published(database.position())
    assert [each["table"] for each in of_kind(database.kafka, keyspace_name, "TableVoid")[number:]] == []


@pytest.mark.parametrize("killed", ["task", "source"])
def test_what_is_cached_is_so_after_restarts_amid_transactions(
    database: Database, keyspace_name: str, killed: str
) -> None:
    """Whatever a connector or a source that begins again repeats or leaves out, no image is one of before."""
    database.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (0, 0)")
    database.create()
    for turn in range(3):
        with RunningPostgres(database, keyspace_name) as running:
            running.until_published(database.position())
            for n in range(20):
                database.run("BEGIN", *(f"INSERT INTO t VALUES ({n}, 0) ON CONFLICT DO NOTHING" for n in range(n)))
                database.run(
                    f"UPDATE t SET v = v + 1 WHERE id % 3 = {n % 3}", f"DELETE FROM t WHERE id = {n + 1}", "COMMIT"
                )
                if killed == "task" and n == 10:
                    database.connect.restart_task(database.connector)
            if killed == "task" or turn == 2:
                running.until_published(database.position())
    cached = cached_images(database.kafka, keyspace_name)
    now = {key("t", str(n)): b'{"id":%d,"v":%d}' % (n, v) for n, v in database.sql.execute("SELECT id, v FROM t")}
    assert {each: image for each, image in cached.items() if image and now.get(each) != image} == {}
    assert len([image for image in cached.values() if image]) > 3


def test_the_command_publishes(database: Database, keyspace_name: str, tmp_path: Path) -> None:
    """With no more than the settings of the page for operators."""
    database.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (0, 0)")
    database.create()
    ensure_topics(database.kafka, keyspace_name, PARTITIONS)
    written = {
        "kafka": {"bootstrap": database.kafka.bootstrap},
        "keyspaces": {
            keyspace_name: {
                "partitions": PARTITIONS,
                "source": {"kind": "debezium", **database.source_settings},
            }
        },
    }
    config = tmp_path / "freshet.toml"
    config.write_text(tomli_w.dumps(written))
    command = ["-m", "freshet.cli", "--config", str(config), "source", "debezium", "--keyspace", keyspace_name]
    with subprocess.Popen([sys.executable, *command]) as running:
        try:
            until(lambda: bool(last_position(database.kafka, keyspace_name)), "the first position")

            def carries() -> bool:
                """Whether the table is known by now: it is as soon as the source has come to where it was described."""
                database.run("UPDATE t SET v = v + 1")
                return key("t", "0") in images(database.kafka, keyspace_name)

            until(carries, "the row")
        finally:
            running.terminate()
    assert running.returncode == 0


@pytest.mark.parametrize("rewriting", ["ALTER TABLE t ALTER v TYPE INT USING v + 1", "ALTER TABLE t DROP v, ADD v INT"])
def test_what_was_rewritten_while_the_source_was_away_is_void(
    database: Database, keyspace_name: str, rewriting: str
) -> None:
    """No message tells it, and the table's description is as it was."""
    database.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (0, 0)")
    database.create()
    with RunningPostgres(database, keyspace_name) as running:
        running.until_published(database.position())
        database.run("UPDATE t SET v = 5")
        running.until_published(database.position())
    before = of_kind(database.kafka, keyspace_name, "TableVoid")
    database.run(rewriting)
    with RunningPostgres(database, keyspace_name) as running:
        running.until_published(database.position())
    voids = of_kind(database.kafka, keyspace_name, "TableVoid")[len(before) :]
    assert {void["table"] for void in voids} == {"public.t"}


def test_a_read_gives_the_images_that_are_published(
    database: Database, writing: RunningPostgres, keyspace_name: str
) -> None:
    """Else a row would differ between the cache and the source, and a fill from a change."""
    database.run(EXTREMES, "INSERT INTO typed (id, r, d, n2, ts3, tm3) VALUES (5, 0.1, -0.0, 0, now(), '00:00')")
    database.run("UPDATE u SET a = 7", "UPDATE t SET n = -3.5, v = E'a\\nb\"\\\\'")
    writing.until_published(database.position())
    published = images(database.kafka, keyspace_name)
    reader = PostgresSnapshotReader(database.settings)
    wanted: dict[str, list[list[object]]] = {
        "public.typed": [[-(1 << 63)], [5]],
        "public.u": [["x", 7]],
        "public.t": [[0]],
    }
    found = reader.read(wanted)
    reader.close()
    read: dict[bytes, bytes] = {}
    for each in found.values():
        assert isinstance(each, SnapshotRead), each
        read |= {row.key: row.image for row in each.rows if isinstance(row, SelectedRow)}
    assert len(read) == 4
    assert read == {key: image for key, image in published.items() if key in read}


def test_a_slot_that_is_dropped_begins_an_epoch(
    database: Database, writing: RunningPostgres, keyspace_name: str
) -> None:
    """Whatever is committed until the connector has another one is told by nobody."""
    epoch = writing.source.status.epoch
    database.remove()
    database.run("UPDATE t SET v = 'told by nobody'")
    until(lambda: bool(writing.source.status.outage), "the source waits")
    database.create()
    until(lambda: writing.source.status.epoch > epoch, "a new epoch")

    def told() -> bytes | None:
        """The row, once it is changed after the table was described anew."""
        database.run("UPDATE t SET v = 'told'")
        writing.until_published(database.position())
        return images(database.kafka, keyspace_name).get(key("t", "0"))

    until(lambda: told() is not None, "the row")
    assert told() == b'{"id":0,"v":"told","n":"0.00"}'


def test_a_slot_that_is_made_anew_under_its_name_proves_nothing(database: Database, keyspace_name: str) -> None:
    """It begins where it was made: what was committed before is told by nobody, and the connector refuses to go on."""
    database.run("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", "INSERT INTO t VALUES (1, 'a')")
    database.create()
    with RunningPostgres(database, keyspace_name) as running:
        database.run("UPDATE t SET v = 'told'")
        running.until_published(database.position())
        epoch = running.source.status.epoch
    database.connect.halt(database.connector)
    until(lambda: not database.streams(), "the connector has left")
    slot = database.prefix
    database.run(f"SELECT pg_drop_replication_slot('{slot}')", "UPDATE t SET v = 'told by nobody'")
    lost = database.position()
    database.run(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")

    def has_lost() -> bool:
        return Position.parse(running.source.status.position).order(Position.parse(lost)).name in ("SAME", "NEWER")

    with RunningPostgres(database, keyspace_name) as running:
        database.connect.resume(database.connector)
        until(lambda: any(each.startswith("FAILED") for each in database.connect.tasks(slot)), "Debezium refuses")
        assert (has_lost(), running.source.status.epoch) == (False, epoch)
        database.connect.delete(database.connector)
        database.connector += "-next"
        database.create()
        until(lambda: running.source.status.epoch > epoch, "what was cached is void")

        def told() -> bytes | None:
            """The row, once it is changed after the table was described anew."""
            database.run("UPDATE t SET v = 'told again'")
            running.until_published(database.position())
            return images(database.kafka, keyspace_name).get(key("t", "1"))

        until(lambda: told() == b'{"id":1,"v":"told again"}', "the row")


@pytest.mark.parametrize(
    ("setting", "value"),
    [("lsn__flush__mode", "connector_and_driver"), ("heartbeat__interval__ms", "0"), ("skipped__operations", "t")],
)
def test_a_connector_that_hides_changes_is_refused(
    database: Database, keyspace_name: str, setting: str, value: str
) -> None:
    """The source ends before it publishes anything, and names the setting."""
    database.create(**{setting: value})
    with pytest.raises(FreshetError) as refused, RunningPostgres(database, keyspace_name):
        pass
    assert refused.value.code == "debezium_bad_connector"
    assert setting.replace("__", ".") in str(refused.value)


def test_without_ends_of_transactions_rows_are_void(database: Database, keyspace_name: str) -> None:
    """At the place of their commit or later, also after a restart and DDL; the position follows an idle server."""
    database.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (0, 0)")
    # A heartbeat between a commit and the question for its place is seldom then.
    database.create(provide__transaction__metadata="false", heartbeat__interval__ms="5000")
    places = {}
    for n in range(1, 3):
        database.run(f"INSERT INTO t VALUES ({100 + n}, 0)")
        places[key("t", str(100 + n))] = database.position()
        with RunningPostgres(database, keyspace_name) as running:
            running.until_published(database.position())
            database.run("BEGIN", f"INSERT INTO t VALUES ({n}, {n})", "UPDATE t SET v = v + 1 WHERE id = 0", "COMMIT")
            places[key("t", str(n))] = places[key("t", "0")] = database.position()
            database.run("CREATE TABLE IF NOT EXISTS elsewhere (id INT)")
            running.until_published(database.position())
    del places[key("t", "101")]  # the epoch began behind it
    with RunningPostgres(database, keyspace_name) as running:
        database.run("BEGIN", "TRUNCATE t", "INSERT INTO t VALUES (5, 5)", "COMMIT")
        running.until_published(database.position())
        assert "public.t" in void_tables(database, keyspace_name)
        number = len(of_kind(database.kafka, keyspace_name, "TableVoid"))
        database.run("ALTER TABLE t ADD COLUMN w INT DEFAULT 7")
        running.until_published(database.position())
        assert len(of_kind(database.kafka, keyspace_name, "TableVoid")) > number
    found = rows(records(database.kafka, keyspace_name, PARTITIONS))
    assert {image for _, _, image, _ in found} == {b""}
    for each, place in places.items():
        assert any(k == each and Position.parse(gtid).contains(Position.parse(place)) for _, k, _, gtid in found), each
