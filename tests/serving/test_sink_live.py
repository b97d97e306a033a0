"""``freshet sink`` over a real stack: into SQLite and into a real MariaDB, killed at any moment."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import threading
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from freshet.cli import app
from freshet.commands.sink import _engine, _failure
from freshet.local.mariadb import MariaDBAddress
from lab.faults.disk import FileSizeLimit, SmallDisk, can_mount_tmpfs
from serving.client.answers import DescribedColumn, DescriptionAnswer
from serving.sink.tables import open_table
from tests.lengths import length
from tests.patience import PATIENCE_S
from tests.servers.databases import own_database
from tests.serving.stack import ServingStack, without_settings

COLUMNS = "id, part, amount, price, note, data, at, flag"
MADE = (
    "(id INT, part VARCHAR(20), amount BIGINT UNSIGNED, price DECIMAL(12,3), note TEXT, data VARBINARY(9), "
    "at DATETIME(6), flag BIT(3), PRIMARY KEY (id, part))"
)


@pytest.fixture(scope="module")
def tables(stack: ServingStack) -> list[str]:
    """Of the shared stack: a parent, and a child that a cascade empties without rows in the log."""
    stack.run(f"CREATE TABLE copied {MADE}")
    stack.run(
        "CREATE TABLE below (id INT PRIMARY KEY, of INT, part VARCHAR(20), "
        "FOREIGN KEY (of, part) REFERENCES copied (id, part) ON DELETE CASCADE)"
    )
    stack.run(
        "INSERT INTO copied SELECT seq, 'a', 18446744073709551615 - seq, 0.125, 'Zoë', X'00FF', NOW(6), b'101' "
        "FROM seq_1_to_1200",
        "INSERT INTO below SELECT id, id, part FROM copied WHERE id % 3 = 0",
    )
    return [f"{stack.database}.copied", f"{stack.database}.below"]


def command(stack: ServingStack, to: str, tables: list[str], *flags: str) -> list[str]:
    """The command, over the stack's front."""
    chosen = [each for name in tables for each in ("--table", name)]
    config = ["--config", str(stack.config), "sink", to, "--keyspace", stack.keyspace, *chosen]
    return [sys.executable, "-m", "freshet", *config, *flags]


def copied_once(stack: ServingStack, to: str, tables: list[str]) -> None:
    """Runs it up to all that is committed."""
    ended = subprocess.run(
        command(stack, to, tables, "--once"), capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr


def at_source(stack: ServingStack, table: str, columns: str) -> set[tuple[Any, ...]]:
    """The rows of the source."""
    with stack.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns} FROM {table}")
        return set(cursor.fetchall())


def in_copy(to: str, table: str, columns: str) -> set[tuple[Any, ...]]:
    """The rows of the copy."""
    engine = sa.create_engine(to)
    with engine.connect() as connection:
        found = {tuple(row) for row in connection.execute(sa.text(f"SELECT {columns} FROM {table}"))}
    engine.dispose()
    return found


class Writer(threading.Thread):
    """Commits all the time: inserts, updates, moved keys, deletions with their cascades."""

    def __init__(self, stack: ServingStack, seed: int) -> None:
        super().__init__()
        self.stack, self.choose, self.ends = stack, random.Random(seed), threading.Event()

    def run(self) -> None:
        with self.stack.connect(autocommit=False) as connection, connection.cursor() as cursor:
            while not self.ends.is_set():
                for _ in range(self.choose.randint(1, 4)):
                    number = self.choose.randint(1, 300)
                    cursor.execute(
                        self.choose.choice(
                            [
                                f"REPLACE INTO copied ({COLUMNS}) VALUES ({number}, 'b', 1, 2.5, NULL, X'', NOW(6), 0)",
                                f"UPDATE copied SET amount = amount DIV 2 + 1, note = NULL WHERE id = {number}",
                                f"UPDATE IGNORE copied SET part = 'c' WHERE id = {number} AND part = 'b'",
                                f"DELETE FROM copied WHERE id = {number}",
                                f"INSERT IGNORE INTO below SELECT id, id, part FROM copied WHERE id = {number} LIMIT 1",
                            ]
                        )
                    )
                connection.commit()
                self.ends.wait(0.02)


def run_sink(arguments: list[str]) -> None:
    """The command, in a process that has begun already."""
    os.environ.clear()
    os.environ.update(without_settings())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    app(arguments)


def started(run: list[str]) -> ForkServerProcess:
    """A sink in a process that is forked from one with all imports: on a busy machine a start takes many seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__, "freshet.commands.sink", "serving.sink.running"])
    process = context.Process(target=run_sink, args=(run[run.index("sink") - 2 :],))
    process.start()
    return process


def kill_while_written(stack: ServingStack, seed: int, sink: list[str], kills: int, seconds: float) -> None:
    """A sink is killed at random moments, up to ``seconds``, and somebody writes until the last one."""
    writer = Writer(stack, seed)
    writer.start()
    try:
        for _ in range(kills):
            process = started(sink)
            process.join(seconds * writer.choose.random())
            assert process.exitcode is None
            process.kill()
            process.join()
    finally:
        writer.ends.set()
        writer.join()


@pytest.mark.long
@pytest.mark.timeout(length(600, 7_200))
def test_a_copy_equals_its_source_after_crash_schedules(stack: ServingStack, tables: list[str], tmp_path: Path) -> None:
    """The process is killed at random moments, while it reads and follows; then it catches up, and nothing differs.

    Some schedules begin with an empty copy, and others with that of the schedule before.
    """
    schedules, advanced, choose = length(3, 100), 0, random.Random(7)
    copies = [make_copied(tmp_path / "copy-0.db")]
    for schedule in range(schedules):
        if choose.random() < 0.5:
            copies.append(make_copied(tmp_path / f"copy-{len(copies)}.db"))
        before = commits(copies[-1])
        sink = command(stack, copies[-1], tables)
        kill_while_written(stack, schedule, sink, choose.randint(1, 4), seconds=3.0)
        advanced += commits(copies[-1]) > before
        ended = started([*sink, "--once"])
        ended.join(4 * PATIENCE_S)
        assert ended.exitcode == 0
        compare(stack, copies[-1])
        print(f"{schedule + 1} schedules, {len(copies)} copies; in {advanced} the killed processes had written")
    assert advanced >= schedules // 4 or schedules < 100


def commits(to: str) -> int:
    """How often a sink has written into a copy."""
    engine = sa.create_engine(to)
    with engine.connect() as connection:
        has_state = sa.inspect(connection).has_table("freshet_sink")
        found = connection.execute(sa.text("SELECT version FROM freshet_sink")).scalar() if has_state else 0
    engine.dispose()
    return found or 0


def make_copied(path: Path) -> str:
    """A copy in SQLite, whose integers are smaller than the source's, with the table."""
    to = f"sqlite:///{path}"
    engine = sa.create_engine(to)
    with engine.begin() as connection:
        texts = "part TEXT, amount TEXT, price TEXT, note TEXT, data BLOB, at TEXT, flag INT"
        own = "freshet_token TEXT, freshet_copy INT"
        connection.execute(sa.text(f"CREATE TABLE copied (id INT, {texts}, {own}, PRIMARY KEY (id, part))"))
    engine.dispose()
    return to


def compare(stack: ServingStack, to: str) -> None:
    """Each row of such a copy is that of the source, and no row is missing."""
    assert in_copy(to, "below", "id, of, part") == at_source(stack, "below", "id, of, part")
    compared = "id, part, note, data"
    assert in_copy(to, "copied", compared) == at_source(stack, "copied", compared)
    exact = at_source(stack, "copied", "id, part, CAST(amount AS CHAR), CAST(price AS CHAR), flag + 0")
    assert in_copy(to, "copied", "id, part, amount, price, flag") == exact


def test_a_copy_in_mariadb_has_the_same_rows(
    stack: ServingStack, tables: list[str], mariadb: MariaDBAddress, tmp_path: Path
) -> None:
    """Into tables that the operator has made, with the source's own types; ended and caught up in between."""
    with own_database(mariadb, f"CREATE TABLE copied {MADE}") as database:
        to = f"mysql+pymysql://{mariadb.user}:{mariadb.password}@{mariadb.host}:{mariadb.port}/{database}"
        engine = sa.create_engine(to)
        (tmp_path / "password").write_text(f"{mariadb.password}\n")
        wrong = to.replace(f":{mariadb.password}@", ":planted@")
        by_file = ("--password-file", str(tmp_path / "password"), "--once")
        refused = subprocess.run(command(stack, wrong, tables, *by_file), capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert (
            "has no column freshet_token, freshet_copy" in refused.stderr
        )  # the file's password is the one that counts
        with engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE copied ADD freshet_token TEXT, ADD freshet_copy BIGINT"))
            connection.execute(sa.text("ALTER TABLE copied MODIFY at TIMESTAMP(6) NULL"))
        elsewhere, in_utc = (f"{to}?init_command=SET%20time_zone='%2B0{hours}:00'" for hours in (2, 0))
        copied_once(stack, elsewhere, tables)
        assert in_copy(in_utc, "copied", COLUMNS) == at_source(stack, "copied", COLUMNS)
        stack.run("UPDATE copied SET price = 7 WHERE id < 500")
        stack.run("DELETE FROM copied WHERE id BETWEEN 600 AND 900")
        copied_once(stack, to, tables)
        engine.dispose()
        assert in_copy(in_utc, "copied", COLUMNS) == at_source(stack, "copied", COLUMNS)
        assert in_copy(to, "below", "id, of, part") == at_source(stack, "below", "id, of, part")


def test_a_copy_in_postgresql_equals_its_source_after_kills(
    stack: ServingStack, tables: list[str], postgres: str
) -> None:
    """Into tables that the sink makes; killed while it reads both side by side and follows, then caught up."""
    kill_while_written(stack, 7, command(stack, postgres, tables, "--readers", "2"), 3, seconds=4.0)
    copied_once(stack, postgres, tables)
    assert in_copy(postgres, "below", "id, of, part") == at_source(stack, "below", "id, of, part")
    plain = "id, part, amount, price, note, data"
    assert in_copy(postgres, "copied", plain) == at_source(stack, "copied", plain)
    exact = at_source(stack, "copied", "id, part, CAST(at AS CHAR), flag + 0")
    assert in_copy(postgres, "copied", "id, part, at, flag") == exact


STRANGE = (
    "(name VARCHAR(300) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin, raw VARBINARY(8), took TIME(3), "
    "amount DECIMAL(65,30), big BIGINT UNSIGNED, bits BIT(64), made YEAR, day DATE, at DATETIME(2), "
    "size ENUM('s','m,l',''), flags SET('a','b'), doc JSON, "
    "PRIMARY KEY (name, raw, took, amount))"
)
TEXTS = (
    "name, HEX(raw), CAST(took AS CHAR), CAST(amount AS CHAR), CAST(big AS CHAR), CAST(bits + 0 AS CHAR), made + 0, "
    "CAST(day AS CHAR), CAST(at AS CHAR), CAST(size AS CHAR), CAST(flags AS CHAR), doc"
)
KEYS = [
    ("''", "X''", "'-838:59:59'", "0"),
    ("'a'", "X''", "'-00:00:00.001'", "-0.000000000000000000000000000001"),
    ("'a '", "X''", "'-00:00:00.001'", "-0.000000000000000000000000000001"),
    ("'a '", "X'00'", "'838:59:59.999'", "99999999999999999999999999999999999.999999999999999999999999999999"),
    ("'A'", "X'0000'", "'00:00:00'", "1"),
    ("REPEAT('𝄞', 300)", "X'FF00'", "'00:00:00.5'", "1.5"),
]
VALUES = [
    "18446744073709551615, ~0, 2155, '0000-00-00', '0000-00-00 00:00:00', 'm,l', 'a,b', '{\"b\": [1.50]}'",
    "0, 0, 0, '2024-00-00', '9999-12-31 23:59:59.99', '', '', 'null'",
    "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL",
]


@pytest.mark.nightly
def test_a_copy_that_is_made_in_mariadb_takes_every_key_and_value(stack: ServingStack, mariadb: MariaDBAddress) -> None:
    """Keys that differ in blanks or zeros at their end, negative times, zero dates, all digits: text for text."""
    stack.run(f"CREATE TABLE strange {STRANGE}")
    rows = [f"({', '.join(key)}, {VALUES[at % 3]})" for at, key in enumerate(KEYS)]
    with stack.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(f"INSERT INTO strange VALUES {', '.join(rows[:4])}")
        tables = [f"{stack.database}.strange"]
        with own_database(mariadb) as database:
            to = f"mysql+pymysql://{mariadb.user}:{mariadb.password}@{mariadb.host}:{mariadb.port}/{database}"
            copied_once(stack, to, tables)  # they are read
            cursor.execute(f"INSERT INTO strange VALUES {', '.join(rows[4:])}")
            cursor.execute("UPDATE strange SET name = CONCAT(name, ' ') WHERE name = ''")
            cursor.execute("DELETE FROM strange WHERE name = 'a '")
            copied_once(stack, to, tables)  # they are told
            found = in_copy(to, "strange", TEXTS)
            assert found == at_source(stack, "strange", TEXTS)
            assert len(found) == 4


def test_a_key_that_does_not_fit_is_never_cut(mariadb: MariaDBAddress) -> None:
    """In a server without a strict ``sql_mode`` it was, and no DELETE found the row again."""
    with own_database(mariadb, "CREATE TABLE t (id VARCHAR(5) PRIMARY KEY, n TINYINT)") as database:
        to = f"mysql+pymysql://{mariadb.user}:{mariadb.password}@{mariadb.host}:{mariadb.port}/{database}"
        for mode in ("", "NO_ENGINE_SUBSTITUTION"):
            engine = _engine(f"{to}?init_command=SET%20sql_mode='{mode}'", None)
            for values in ("'sixsix', 1", "'six', 1000"):
                with pytest.raises(sa.exc.DataError) as refused, engine.begin() as connection:
                    connection.execute(sa.text(f"INSERT INTO t VALUES ({values})"))
                assert _failure(refused.value).code == "sink_value"
            engine.dispose()


@pytest.mark.parametrize("lengths", [[1024], [400, 400], [20] * 4])
def test_a_key_of_any_length_can_be_made_in_mariadb(mariadb: MariaDBAddress, lengths: list[int]) -> None:
    """Characters that have one byte at the source have four in the copy: all there is room for is used, and no more."""
    key = [DescribedColumn(f"c{at}", "text", f"varchar({length})") for at, length in enumerate(lengths)]
    described = DescriptionAnswer("shop.long", key, [column.name for column in key], cacheable=True)
    with own_database(mariadb) as database:
        to = f"mysql+pymysql://{mariadb.user}:{mariadb.password}@{mariadb.host}:{mariadb.port}/{database}"
        engine = sa.create_engine(to)
        made = open_table(engine, sa.MetaData(), described).table
        assert sum(column.type.length for column in made.primary_key) == 3072 // 4
        engine.dispose()


def write_below(stack: ServingStack, first: int, count: int = 1) -> None:
    """New rows of both tables."""
    rows = f"FROM seq_{first}_to_{first + count - 1}"
    stack.run(
        f"INSERT INTO copied SELECT seq, 'w', 1, 1, NULL, NULL, NOW(6), 0 {rows}",
        f"INSERT INTO below SELECT seq, seq, 'w' {rows}",
    )


@pytest.mark.parametrize("kind", ["sqlite", "mariadb"])
def test_a_locked_copy_ends_the_sink_and_loses_nothing(
    stack: ServingStack, tables: list[str], mariadb: MariaDBAddress, tmp_path: Path, kind: str
) -> None:
    """Somebody else holds the file or the rows of the copy: the sink says so, and goes on when it is started again."""
    with own_database(mariadb) as database:
        to, locks = f"sqlite:///{tmp_path}/copy.db?timeout=0.5", ["BEGIN EXCLUSIVE"]
        if kind == "mariadb":
            to = f"mysql+pymysql://{mariadb.user}:{mariadb.password}@{mariadb.host}:{mariadb.port}/{database}"
            to += "?init_command=SET%20innodb_lock_wait_timeout%3D1"
            locks = ["BEGIN", "SELECT * FROM below FOR UPDATE"]
        copied_once(stack, to, tables[1:])
        engine = sa.create_engine(to, isolation_level="AUTOCOMMIT")
        with engine.connect() as holder:
            for statement in locks:
                holder.execute(sa.text(statement))
            write_below(stack, 20_000 if kind == "sqlite" else 20_001)
            ended = subprocess.run(
                command(stack, to, tables[1:], "--once"),
                capture_output=True,
                text=True,
                timeout=2 * PATIENCE_S,
                check=False,
            )
            assert ended.returncode == 1
            assert "error[sink_failed]" in ended.stderr, ended.stderr
            holder.execute(sa.text("ROLLBACK"))
        engine.dispose()
        copied_once(stack, to, tables[1:])
        assert in_copy(to, "below", "id, of, part") == at_source(stack, "below", "id, of, part")


def test_a_full_disk_under_the_copy_ends_the_sink_and_loses_nothing(
    stack: ServingStack, tables: list[str], tmp_path: Path
) -> None:
    """What was written half is not in the copy. Once there is room the sink goes on to what the source has."""
    small = tmp_path / "disk"
    disk = SmallDisk(small, 8 << 20) if can_mount_tmpfs(tmp_path) else FileSizeLimit(small)
    with disk:
        to = f"sqlite:///{small}/copy.db"
        copied_once(stack, to, tables[1:])
        before = in_copy(to, "below", "id, of, part")
        with subprocess.Popen(command(stack, to, tables[1:]), stderr=subprocess.PIPE, text=True) as sink:
            disk.fill(sink.pid)
            write_below(stack, 30_000, 5_000)
            _, said = sink.communicate(timeout=2 * PATIENCE_S)
        assert sink.returncode == 1
        assert "error[sink_failed]" in said, said
        assert in_copy(to, "below", "id, of, part") == before
        disk.free(sink.pid)
        copied_once(stack, to, tables[1:])
        assert in_copy(to, "below", "id, of, part") == at_source(stack, "below", "id, of, part")


def test_a_database_that_refuses_ends_the_sink_with_its_words(
    stack: ServingStack, tables: list[str], tmp_path: Path
) -> None:
    """No rows are lost by it: the checkpoint is where the rows are. A URL that is none is told, too."""
    full = tmp_path / "no such folder" / "copy.db"
    for to, code in ((f"sqlite:///{full}", "sink_failed"), ("nonsense", "sink_refused")):
        ended = subprocess.run(
            command(stack, to, tables), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert ended.returncode == 1
        assert f"error[{code}]" in ended.stderr, ended.stderr
