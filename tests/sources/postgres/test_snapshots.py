"""What is read from a PostgreSQL lies between its two positions, whatever other sessions do meanwhile."""

from __future__ import annotations

import random
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from lab.faults.network import LinkConditions, Network
from stream.sources.key_range import KeyRange
from stream.sources.mariadb.backfill.chunks import TableDiffers
from stream.sources.mariadb.by_key import Found, KeyNotPossible, SelectedRow
from stream.sources.mariadb.by_range import SelectedRange, SortTooLarge
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError, MariaDBUnreachable
from stream.sources.mariadb.gtid import PostgresPlace
from stream.sources.mariadb.schema import ColumnInfo, TableInfo
from stream.sources.mariadb.snapshot import NoSuchTable, SnapshotRead, SourceTimeout
from stream.sources.postgres import selecting, snapshot
from stream.sources.postgres.chunks import PostgresChunkReader
from stream.sources.postgres.selecting import RowsInOrder, raw_rows, rows_by_key
from stream.sources.postgres.snapshot import PostgresSnapshotReader
from stream.sources.postgres.writers import Writers
from stream.wire.events import Column, DescribeTable
from stream.wire.keys import split_row_key
from stream.wire.values import UndecodableValue
from tests.patience import PATIENCE_S
from tests.sources.mariadb.test_source import until

T = "public.t"
KEYS, READS = 8, 800


def session(settings: ConnectionSettings, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
    """A session of somebody else, who waits until a commit is safe."""
    found = psycopg.connect(
        host=settings.host,
        port=settings.port,
        user=settings.user,
        password=settings.password,
        dbname=settings.database,
        autocommit=True,
        **options,
    )
    found.execute("SET synchronous_commit = on")
    return found


def end_of_log(connection: psycopg.Connection[tuple[Any, ...]]) -> int:
    """Where the log ends now."""
    [(end,)] = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchall()
    return int(end)


@pytest.fixture
def sql(empty: ConnectionSettings) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A session."""
    with session(empty) as found:
        yield found


@pytest.fixture
def reader(empty: ConnectionSettings) -> Iterator[PostgresSnapshotReader]:
    """A reader."""
    found = PostgresSnapshotReader(empty)
    yield found
    found.close()


def read_of(reader: PostgresSnapshotReader, *keys: object, table: str = T) -> SnapshotRead[tuple[Found, ...]]:
    """What is read of a table by keys of one column."""
    found = reader.read({table: [[key] for key in keys]})[table]
    assert isinstance(found, SnapshotRead), found
    return found


def lsn(position: str) -> int:
    """The place of a position."""
    return PostgresPlace.of(position.removeprefix("Postgres/")).lsn


def lo_of(read: SnapshotRead[tuple[Found, ...]], place: int = 0) -> int:
    """The place up to which a row has everything."""
    return lsn(read.proof_of(place)[0])


def images(read: SnapshotRead[tuple[Found, ...]]) -> list[bytes | None]:
    """The images; None of an absent row."""
    return [row.image if isinstance(row, SelectedRow) else None for row in read.rows]


@pytest.fixture
def stuck(empty: ConnectionSettings) -> Iterator[Callable[[str], None]]:
    """Runs a statement whose commit is in the log, and is seen by nobody until the test ends, or calls ``release``.

    It waits for a standby that is not there. Only sessions that wait for their commits are concerned.
    """
    admin = session(empty)
    admin.execute("SET synchronous_commit = off")
    pool = ThreadPoolExecutor()
    waiting: list[psycopg.Connection[tuple[Any, ...]]] = []

    def standbys(names: str) -> None:
        admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'".encode())
        admin.execute("SELECT pg_reload_conf()")

    def run(statement: str) -> None:
        writer = session(empty)
        waiting.append(writer)
        standbys("nobody")
        shown = session(empty)
        until(lambda: shown.execute("SHOW synchronous_standby_names").fetchall() == [("nobody",)], "no standby")
        shown.execute("CHECKPOINT")  # whose process tells the others whether they wait, once it has read the setting
        shown.close()
        pool.submit(writer.execute, statement.encode())
        asked = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
        until(lambda: admin.execute(asked, (writer.info.backend_pid,)).fetchall() == [("SyncRep",)], "it waits")

    def release() -> None:
        standbys("")
        pool.shutdown()

    run.release = release  # type: ignore[attr-defined]
    yield run
    release()
    for each in [*waiting, admin]:
        each.close()


@pytest.mark.parametrize(
    "statement", ["UPDATE t SET v = 2 WHERE id = 1", "DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (2, 2)"]
)
def test_a_commit_that_is_in_the_log_and_not_seen_yet_is_not_covered(
    sql: psycopg.Connection[tuple[Any, ...]], reader: PostgresSnapshotReader, stuck: Any, statement: str
) -> None:
    """The end of the log is behind it, and the rows lack it. Once it is seen, they are proved up to there."""
    sql.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    sql.execute("INSERT INTO t VALUES (1, 1), (3, 3)")
    before = end_of_log(sql)
    assert lo_of(read_of(reader, 1, 2), 1) >= before
    before = end_of_log(sql)
    stuck(statement)
    after = end_of_log(sql)
    key = 2 if "INSERT" in statement else 1
    read = read_of(reader, key)
    assert images(read) == [b'{"id":1,"v":1}' if key == 1 else None], "it is not seen"
    assert lo_of(read) <= before
    assert lsn(read.hi) >= after
    assert not read.is_primary, "nor does it have all that was committed by now"
    assert not reader.wait_for_position(f"Postgres/1:0/{after:X}", 0.05)
    for untouched, place in ((read_of(reader, 3), 0), (read_of(reader, key, 3), 1)):
        assert lo_of(untouched, place) >= after, "who changes a row has marked it, and others of a batch don't matter"
        assert untouched.proof_of(place)[2]
    assert lo_of(read_of(reader, key, 3)) <= before
    stuck.release()
    assert reader.wait_for_position(f"Postgres/1:0/{after:X}", PATIENCE_S)
    read = read_of(reader, key)
    assert lo_of(read) >= after
    assert images(read) == [{"U": b'{"id":1,"v":2}', "D": None, "I": b'{"id":2,"v":2}'}[statement[0]]]


def test_a_value_of_an_enum_that_is_getting_another_name_is_not_covered(
    sql: psycopg.Connection[tuple[Any, ...]], reader: PostgresSnapshotReader, stuck: Any
) -> None:
    """All rows will change, and none is marked."""
    sql.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    sql.execute("CREATE TABLE t (id INT PRIMARY KEY, m mood)")
    sql.execute("INSERT INTO t VALUES (1, 'sad')")
    before = end_of_log(sql)
    stuck("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    after = end_of_log(sql)
    read = read_of(reader, 1)
    assert images(read) == [b'{"id":1,"m":"sad"}']
    assert lo_of(read) <= before
    stuck.release()
    assert reader.wait_for_position(f"Postgres/1:0/{after:X}", PATIENCE_S)
    read = read_of(reader, 1)
    assert images(read) == [b'{"id":1,"m":"blue"}']
    assert lo_of(read) >= after


def test_only_rows_of_a_heap_are_known_to_be_marked(
    empty: ConnectionSettings, sql: psycopg.Connection[tuple[Any, ...]], reader: PostgresSnapshotReader
) -> None:
    """Whoever stores rows otherwise may not say who changes them."""
    sql.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    name = f"own_{empty.database}"
    sql.execute(f"CREATE ACCESS METHOD {name} TYPE TABLE HANDLER heap_tableam_handler".encode())
    sql.execute(f"CREATE TABLE other (id INT PRIMARY KEY) USING {name}".encode())
    sql.execute("INSERT INTO t VALUES (1), (2)")
    sql.execute("INSERT INTO other VALUES (1), (2)")
    with session(empty) as writer, writer.transaction():
        for table in ("t", "other"):
            writer.execute(f"DELETE FROM {table} WHERE id = 2".encode())
        now = end_of_log(sql)
        assert lo_of(read_of(reader, 1)) >= now
        assert lo_of(read_of(reader, 1, table="public.other")) < now


def test_reads_lie_between_their_positions_while_others_write(
    empty: ConnectionSettings, sql: psycopg.Connection[tuple[Any, ...]], reader: PostgresSnapshotReader
) -> None:
    """Of thousands of reads none lacks what was committed before lo, or has what was begun after hi."""
    sql.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    history: list[list[tuple[int, int, int | None]]] = [[(0, 0, None)] for _ in range(KEYS)]
    """Of each key, for each change: where its commit is behind, where it is before, and the value."""
    over = threading.Event()

    def write(number: int) -> None:
        rng = random.Random(number)
        with session(empty) as own:
            own.autocommit = False
            value = 0
            while not over.is_set():
                key = rng.randrange(number, KEYS, 2)
                there = history[key][-1][2] is not None
                value += 1
                if not there:
                    own.execute("INSERT INTO t VALUES (%s, %s)", (key, value))
                elif rng.random() < 0.3:
                    own.execute("DELETE FROM t WHERE id = %s", (key,))
                else:
                    own.execute("UPDATE t SET v = %s WHERE id = %s", (value, key))
                now = None if there and own.execute("SELECT 1 FROM t WHERE id = %s", (key,)).rowcount == 0 else value
                begun = end_of_log(own)
                own.commit()
                history[key].append((begun, end_of_log(own), now))
                own.commit()

    pool = ThreadPoolExecutor()
    writers = [pool.submit(write, number) for number in (0, 1)]
    reads = []
    rng = random.Random(2)
    try:
        for at in range(READS):
            wanted = [*range(KEYS)] if at % 2 else [rng.randrange(KEYS)]
            reads.append((wanted, read_of(reader, *wanted)))
    finally:
        over.set()
        for each in writers:
            each.result()
        pool.shutdown()
    done = [[at for _, at, _ in changes] for changes in history]
    begun = [[at for at, _, _ in changes] for changes in history]
    for keys, read in reads:
        hi = lsn(read.hi)
        for place, (key, image) in enumerate(zip(keys, images(read), strict=True)):
            first, last = bisect_right(done[key], lo_of(read, place)) - 1, bisect_right(begun[key], hi)
            value = None if image is None else int(image.split(b":")[2][:-1])
            possible = {value for _, _, value in history[key][first:last]}
            assert value in possible, (key, value, possible, read.position, read.hi)
    proved = sum(lo_of(read) > 0 for _, read in reads)
    assert proved > len(reads) / 2, "most reads prove something"


def test_what_a_name_belongs_to_is_held_while_it_is_read(
    empty: ConnectionSettings,
    sql: psycopg.Connection[tuple[Any, ...]],
    reader: PostgresSnapshotReader,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody can alter the table between its description and its rows; who did before is noticed."""
    sql.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    sql.execute("INSERT INTO t VALUES (1, 1)")
    read_of(reader, 1)
    sql.execute("ALTER TABLE t ADD w INT DEFAULT 7")
    refused = []

    def late(*arguments: Any) -> Any:
        with session(empty) as other:
            other.execute("SET lock_timeout = 20")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute("ALTER TABLE t DROP v")
        refused.append(True)
        return rows_by_key(*arguments)

    monkeypatch.setattr(snapshot, "rows_by_key", late)
    assert images(read_of(reader, 1)) == [b'{"id":1,"v":1,"w":7}']
    assert refused
    sql.execute("DROP TABLE t")
    assert isinstance(reader.read({T: [[1]]})[T], NoSuchTable)
    with pytest.raises(NoSuchTable):
        reader.table(T)


def test_a_locked_table_fails_alone(
    empty: ConnectionSettings, sql: psycopg.Connection[tuple[Any, ...]], reader: PostgresSnapshotReader
) -> None:
    """The other tables of a batch are read, in the time that is left."""
    for name in "tu":
        sql.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY)".encode())
        sql.execute(f"INSERT INTO {name} VALUES (1)".encode())
    with session(empty) as other, other.transaction():
        other.execute("LOCK TABLE t")
        read = reader.read({T: [[1]], "public.u": [[1]]}, 6.0)
    assert isinstance(read[T], SourceTimeout)
    assert isinstance(read["public.u"], SnapshotRead)
    assert images(read["public.u"]) == [b'{"id":1}']


def test_a_key_that_no_row_can_have_is_an_error_of_its_own(
    sql: psycopg.Connection[tuple[Any, ...]], reader: PostgresSnapshotReader
) -> None:
    """Each key of a batch gets the answer that it gets alone, also after an error of the server."""
    sql.execute('CREATE TABLE t ("a%" INT, b VARCHAR(3), c BYTEA, PRIMARY KEY (b, "a%", c))')
    sql.execute("INSERT INTO t VALUES (1, 'abc', '\\x00ff'), (2, 'ü', '')")
    binary = {"base64": "AP8="}
    keys: list[list[object]] = [
        ["abc", 1, binary],
        ["abcd", 1, binary],
        ["ü", 2, {"base64": ""}],
        ["abc", 1 << 40, binary],
    ]
    keys += [["abc", "x", binary], ["a\0c", 1, binary]]
    for some in (keys, keys[:3], *([key] for key in keys)):
        read = reader.read({T: some})[T]
        assert isinstance(read, SnapshotRead)
        expected = [keys.index(key) for key in some]
        for number, row in zip(expected, read.rows, strict=True):
            if number in (0, 2):
                assert isinstance(row, SelectedRow)
                assert (
                    row.key
                    == (b'public.t\0["abc",1,{"base64":"AP8="}]', b"", 'public.t\0["ü",2,{"base64":""}]'.encode())[
                        number
                    ]
                )
            elif number == 1:
                assert row is None, "a longer text is not cut"
            else:
                assert isinstance(row, KeyNotPossible)


def test_rows_that_a_policy_hides_are_no_absent_ones(
    empty: ConnectionSettings, sql: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """A user who may not see all rows can't read any."""
    sql.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    sql.execute("INSERT INTO t VALUES (1)")
    sql.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    user = f"{empty.database}_reader"
    sql.execute(f"CREATE USER {user}".encode())
    try:
        sql.execute(f"GRANT SELECT ON t TO {user}".encode())
        limited = PostgresSnapshotReader(
            ConnectionSettings(empty.host, empty.port, user, product="PostgreSQL", database=empty.database)
        )
        found = limited.read({T: [[1]]})[T]
        limited.close()
        assert isinstance(found, MariaDBError)
        assert "row-level security" in str(found)
    finally:
        sql.execute(f"DROP OWNED BY {user}".encode())
        sql.execute(f"DROP USER {user}".encode())


def test_a_table_of_partitions_or_heirs_is_refused_and_they_are_read(
    sql: psycopg.Connection[tuple[Any, ...]], reader: PostgresSnapshotReader
) -> None:
    """Its own rows are none, or not all: they would pass for absent ones."""
    sql.execute("CREATE TABLE t (id INT PRIMARY KEY) PARTITION BY RANGE (id)")
    sql.execute("CREATE TABLE part PARTITION OF t FOR VALUES FROM (0) TO (9)")
    sql.execute("CREATE TABLE parent (id INT PRIMARY KEY)")
    sql.execute("CREATE TABLE heir (PRIMARY KEY (id)) INHERITS (parent)")
    sql.execute("INSERT INTO t VALUES (1)")
    sql.execute("INSERT INTO heir VALUES (1)")
    found = reader.read({name: [[1]] for name in (T, "public.parent", "public.part", "public.heir")})
    for name in (T, "public.parent"):
        refused = found[name]
        assert isinstance(refused, MariaDBError)
        assert refused.code == "no_primary_key"
        assert isinstance(reader.read_range(name, KeyRange(limit=1)), MariaDBError)
        assert reader.table(name).primary_key == (), "a front that describes it names no row of it"
    for name in ("public.part", "public.heir"):
        assert images(read_of(reader, 1, table=name)) == [b'{"id":1}']


def test_what_is_kept_of_a_read_is_proved_by_what_no_crash_undoes(
    empty: ConnectionSettings, sql: psycopg.Connection[tuple[Any, ...]], reader: PostgresSnapshotReader
) -> None:
    """The log that is not flushed may be lost, and be written otherwise at the same places."""
    sql.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)")
    sql.execute("INSERT INTO t VALUES (1, '')")
    with session(empty) as other, other.transaction():
        other.execute("CREATE TEMP TABLE x AS SELECT 1")
        other.execute("CREATE TABLE large AS SELECT repeat(n::text, 100) FROM generate_series(1, 1000) n")
        before = end_of_log(sql)
        read = read_of(reader, 1)
        [(flushed,)] = sql.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchall()
    position, kept, _ = read.proof_of(0)
    assert lsn(position) >= before
    assert lsn(kept) <= min(lsn(position), int(flushed))
    assert lsn(kept) > 0


def test_ranges_come_in_the_servers_order_page_by_page(
    sql: psycopg.Connection[tuple[Any, ...]], reader: PostgresSnapshotReader
) -> None:
    """Pages by the key, and by another column with NULLs, in both directions, are the rows of one SELECT."""
    sql.execute("CREATE TABLE t (a INT, b TEXT, v INT, PRIMARY KEY (a, b))")
    sql.execute("INSERT INTO t SELECT n % 3, 'x' || n, nullif(n % 5, 0) FROM generate_series(1, 60) n")

    def of(**wanted: Any) -> SelectedRange:
        read = reader.read_range(T, KeyRange(**wanted))
        assert isinstance(read, SnapshotRead), read
        return read.rows

    for descending in (False, True):
        for order in ((), ("v",)):
            for leading in ((), (1,)):
                found: list[bytes] = []
                page = of(leading=leading, descending=descending, limit=7, order=order)
                while True:
                    found += [row.image for row in page.rows]
                    if not page.more:
                        break
                    last = found[-1]
                    a, b, v = [part.split(b":", 1)[1] for part in last[1:-1].split(b",")]
                    after = [int(a), b.decode().strip('"')]
                    values = [None if v == b"null" else int(v)] if order else []
                    page = of(
                        leading=leading, descending=descending, limit=7, order=order, after=after, after_values=values
                    )
                down = " DESC" if descending else ""
                by = f"v{' DESC NULLS LAST' if descending else ' NULLS FIRST'}, " if order else ""
                where = " WHERE a = 1" if leading else ""
                rows = sql.execute(f"SELECT a, b FROM t{where} ORDER BY {by}a{down}, b{down}".encode()).fetchall()
                assert [(image.split(b",")[0][5:], image.split(b'"')[5]) for image in found] == [
                    (str(a).encode(), b.encode()) for a, b in rows
                ]
    assert of(leading=(1,)).number == 20
    assert of(where=(("v", 4),)).number == 12
    assert of(count_max=5).number == 5
    sql.execute("INSERT INTO t SELECT 9, 'x' || n, 1 FROM generate_series(1, 20001) n")
    assert isinstance(reader.read_range(T, KeyRange(limit=1, order=("v",))), SortTooLarge)
    assert len(of(limit=1).rows) == 1
    assert isinstance(reader.read_range(T, KeyRange(leading=("x",), limit=1)), KeyNotPossible)


def test_a_server_that_hangs_is_not_waited_for(
    empty: ConnectionSettings, sql: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """A read ends soon after its time, whatever the server does, and the next one has another session."""
    sql.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    with Network() as network:
        link = network.link("postgres", (empty.host, empty.port))
        reader = PostgresSnapshotReader(replace(empty, host="127.0.0.1", port=link.port))
        assert images(read_of(reader, 1)) == [None]
        link.set_conditions(LinkConditions(blocked=True))
        with pytest.raises(MariaDBUnreachable):
            reader.read({T: [[1]]}, 0.1)
        link.clear()
        assert images(read_of(reader, 1)) == [None]
        reader.close()


def place(at: int) -> PostgresPlace:
    """A place of the first timeline."""
    return PostgresPlace(1, at)


def test_a_bound_is_an_end_of_the_log_whose_writers_have_left() -> None:
    """Those of now don't count for it, those of then do, also if one may go on as a prepared transaction."""
    known = Writers()

    def look(at: int, *writers: str) -> int:
        return known.bound(known.begin(), T, place(at), writers).lsn

    assert look(10, "3/1") == 0, "nothing is known"
    assert look(20, "3/1", "4/1") == 0
    assert known.awaited() == {"3/1", "4/1"}
    assert look(30, "4/1", "5/1") == 10
    assert look(40, "-1/77", "5/1") == 10, "4/1 may be prepared now"
    assert look(50, "5/1") == 20
    assert look(60) == 60
    assert known.awaited() == set()
    assert look(70, "5/2") == 60
    assert str(known.bound(known.begin(), T, PostgresPlace(2, 100), ["9/9"])) == "Postgres/2:0/0", "another history"


def test_a_look_says_nothing_of_what_was_noted_after_it_began() -> None:
    """Its writers are those of before: one who came meanwhile is not among them, and has not left."""
    known = Writers()
    early = known.begin()
    known.bound(known.begin(), T, place(20), ["4/1"])
    assert known.bound(early, T, place(10), ["3/1"]).lsn == 0
    assert known.bound(known.begin(), T, place(30), ["5/1"]).lsn == 20


def test_writers_that_follow_each_other_closely_leave_a_bound_that_moves() -> None:
    """However often the table is looked at while one of them writes."""
    known = Writers()
    bounds = [
        known.bound(known.begin(), T, place(at), [f"3/{at // 100}", f"3/{at // 100 + 1}"]).lsn for at in range(1, 1000)
    ]
    assert bounds[-1] > 700


def test_ends_of_the_log_that_a_crash_has_undone_are_forgotten() -> None:
    """The server goes on before them, on the same timeline, with other records."""
    known = Writers()
    known.bound(known.begin(), T, place(120), [])
    assert known.bound(known.begin(), T, place(105), ["3/1"]).lsn == 0


def test_an_end_of_the_log_that_is_not_flushed_is_no_bound_later() -> None:
    """A crash undoes it. Whoever is logged at its place then, and is not seen yet, was no writer when it was noted."""
    known = Writers()
    assert known.bound(known.begin(), T, place(120), [], 100).lsn == 120, "nobody writes now"
    known.bound(known.begin(), T, place(125), ["3/1"], 100)
    assert known.bound(known.begin(), T, place(130), ["4/1"], 130).lsn == 100


def test_who_writes_now_is_awaited_also_where_no_more_of_the_log_is_kept_than_before() -> None:
    """A read that proves too little is repeated once they have left. Their look is no bound that is later."""
    known = Writers()
    assert known.bound(known.begin(), T, place(120), [], 100).lsn == 120
    for writer in ("3/1", "4/1"):
        assert known.bound(known.begin(), T, place(120), [writer], 100).lsn == 100
        assert known.awaited() == {writer}
    assert known.bound(known.begin(), T, place(130), [], 100).lsn == 130
    assert known.awaited() == set()
    assert len(known._seen[T]) <= 2


def test_who_wrote_into_a_table_that_nobody_reads_any_more_is_not_waited_for() -> None:
    """Else one long transaction would hold up the reads of all tables."""
    known = Writers()
    known.bound(known.begin(), "public.u", place(1), ["9/9"])
    assert known.awaited() == {"9/9"}
    for at in range(2, 100):
        known.bound(known.begin(), T, place(at), ["3/1"])
    assert known.awaited() == {"3/1"}


def test_what_is_remembered_of_writers_is_bounded() -> None:
    """One that never ends leaves some ends of the log, and the last bound among them."""
    known = Writers()
    known.bound(known.begin(), T, place(1), [])
    for at in range(2, 100):
        assert known.bound(known.begin(), T, place(at), ["3/1"]).lsn == 1
    assert known.bound(known.begin(), T, place(100), ["9/9"]).lsn == 99
    assert sum(map(len, known._seen.values())) <= 16


def test_rows_in_order_end_where_they_are_many_bytes(
    reader: PostgresSnapshotReader, sql: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """A chunk of large rows would not fit into memory; the next one goes on after it, and nothing is left out."""
    sql.execute("CREATE TABLE large (id INT, name TEXT, v TEXT, PRIMARY KEY (name, id))")
    sql.execute("INSERT INTO large SELECT n, 'n' || n % 3, repeat('x', 20000) FROM generate_series(1, 500) n")

    def chunk(after: list[object] | None, limit: int, bytes_max: int) -> RowsInOrder:
        found = reader.read_in_order("public.large", after, limit, bytes_max, PATIENCE_S)
        assert isinstance(found, SnapshotRead), found
        return found.rows

    for limit, bytes_max, rows_max in ((4_096, 1_000_000, 128), (200, 1 << 30, 200), (250, 1 << 30, 250)):
        keys: list[bytes] = []
        after: list[object] | None = None
        while True:
            rows, is_end = chunk(after, limit, bytes_max)
            assert len(rows) <= rows_max
            keys += [key for key, _ in rows]
            if is_end:
                break
            after = [*split_row_key(keys[-1])[1]]
        places = [(str(name), int(str(number))) for name, number in (split_row_key(key)[1] for key in keys)]
        assert places == sorted(set(places))
        assert len(places) == 500


def test_a_page_of_large_rows_is_not_all_held(
    reader: PostgresSnapshotReader, sql: psycopg.Connection[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver holds what a statement returns: a front would hold a thousand rows for a page of four MiB."""
    sql.execute("CREATE TABLE large (id INT PRIMARY KEY, v TEXT)")
    sql.execute("INSERT INTO large SELECT n, repeat('x', 100000) FROM generate_series(1, 300) n")
    held: list[int] = []

    def counted(*arguments: Any) -> list[list[bytes | None]]:
        found = raw_rows(*arguments)
        held.append(len(found))
        return found

    monkeypatch.setattr(selecting, "raw_rows", counted)
    found: list[int] = []
    after: list[object] | None = None
    for limit in (1_000, 63, 64, 128, 1_000, 1_000):
        read = reader.read_range("public.large", KeyRange(after=after, limit=limit))
        assert isinstance(read, SnapshotRead), read
        assert len(read.rows.rows) <= min(limit, 42)
        keys = [int(str(split_row_key(row.key)[1][0])) for row in read.rows.rows]
        found += keys
        after = [keys[-1]]
    assert found == [*range(1, len(found) + 1)]
    assert max(held) <= selecting.PIECE_ROWS
    sql.execute("UPDATE large SET v = 'x'")
    for limit in (127, 128, 129, 299, 300, 301, 1_000):
        read = reader.read_range("public.large", KeyRange(limit=limit, descending=True))
        assert isinstance(read, SnapshotRead), read
        assert (len(read.rows.rows), read.rows.more) == (min(limit, 300), limit < 300)


def test_a_table_with_a_key_that_cannot_be_decoded_is_not_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as of MariaDB, where others are read meanwhile."""
    reader = PostgresChunkReader(ConnectionSettings(product="PostgreSQL"))

    def infinite(*_: object) -> Any:
        raise UndecodableValue("infinity is no date")

    monkeypatch.setattr(reader._reader, "held", lambda *_: "")
    monkeypatch.setattr(reader._reader, "read_in_order", infinite)
    with pytest.raises(TableDiffers, match="infinity is no date"):
        reader.read(DescribeTable("public.t", (Column("day", "date", True),), ("day",)), None)


def test_rows_that_nobody_changes_are_named_by_their_place_among_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are asked for some at a time. A row that somebody is changing would be called proven up to the log's end."""
    monkeypatch.setattr(selecting, "STATEMENT_KEYS_MAX", 2)
    info = TableInfo("public", "t", (ColumnInfo("id", "int", True),), ("id",), engine="d heap 1")

    def selected(_: object, __: str, keys: Sequence[str]) -> list[list[bytes | None]]:
        return [[b"%d" % at, b"f" if key in "03" else b"t", key.encode()] for at, key in enumerate(keys)]

    monkeypatch.setattr(selecting, "raw_rows", selected)
    connection: Any = SimpleNamespace(execute=lambda _: None)
    found, untouched = rows_by_key(connection, info, [[number] for number in range(5)])
    assert [each.key for each in found if isinstance(each, SelectedRow)] == [b"public.t\0[%d]" % n for n in range(5)]
    assert untouched == {1, 2, 4}


@pytest.mark.parametrize(("rows", "is_end"), [(0, True), (3, True), (4, False)])
def test_a_chunk_with_as_many_rows_as_were_asked_for_is_not_the_last(
    monkeypatch: pytest.MonkeyPatch, rows: int, is_end: bool
) -> None:
    """Others may follow: a table that is called complete without them would have no such rows for ever."""
    info = TableInfo("public", "t", (ColumnInfo("id", "int", True),), ("id",), engine="d heap 1")
    monkeypatch.setattr(selecting, "raw_rows", lambda *_: [[b"%d" % number] for number in range(rows)])
    connection: Any = None
    found = selecting.rows_in_order(connection, info, None, 4, 1 << 20)
    assert (len(found.rows), found.is_end) == (rows, is_end)
