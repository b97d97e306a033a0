"""A read of MySQL lies between its two positions, whatever is committed, in whatever way, meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from stream.sources.key_range import KeyRange
from stream.sources.mariadb import snapshot
from stream.sources.mariadb.by_key import KeyNotPossible, SelectedRow, rows_by_key
from stream.sources.mariadb.connection import connect
from stream.sources.mariadb.gtid import GtidPosition, MysqlGtidSet
from stream.sources.mariadb.snapshot import SnapshotRead, SnapshotReader, SourceTimeout
from tests.sources.mariadb.conftest import Source, rows

READS = 400
WRITERS = 3


def plain(row: int, value: int) -> list[str]:
    """One UPDATE under autocommit."""
    return [f"UPDATE t SET v = {value} WHERE id = {row}"]


def tagged(row: int, value: int) -> list[str]:
    """A transaction with a tag."""
    return ["SET gtid_next = 'AUTOMATIC:w'", *plain(row, value), "SET gtid_next = 'AUTOMATIC'"]


def compressed(row: int, value: int) -> list[str]:
    """A transaction that the binlog has as one payload."""
    return ["SET binlog_transaction_compression = ON", "BEGIN", *plain(row, value), "COMMIT"]


@contextmanager
def written(source: Source, ways: list[Callable[[int, int], list[str]]]) -> Iterator[None]:
    """Each way writes a row of its own in a loop: 1, 2, 3, …"""
    stop = threading.Event()

    def write(row: int, way: Callable[[int, int], list[str]]) -> None:
        session = connect(source.settings)
        session.select_db(source.database)
        value = 0
        while not stop.is_set():
            value += 1
            for statement in way(row, value):
                session.query(statement)
        session.close()

    with ThreadPoolExecutor(len(ways)) as pool:
        running = [pool.submit(write, row, way) for row, way in enumerate(ways)]
        try:
            yield
        finally:
            stop.set()
            for each in running:
                each.result()


def gtids_by_value(source: Source) -> dict[tuple[int, int], MysqlGtidSet]:
    """(row, value) → the transaction that wrote it, from the binlog."""
    found = {}
    for transaction in source.transactions():
        for _, _, image in rows(transaction):
            row = json.loads(image)
            found[row["id"], row["v"]] = MysqlGtidSet.of(transaction.gtid.removeprefix("MySQL56/"))
    return found


def violations(reads: list[tuple[int, int, str, str]], gtids: dict[tuple[int, int], MysqlGtidSet]) -> int:
    """How many reads (row, value, lo, hi) lack what their lo has, or have what their hi lacks."""
    wrong = 0
    for row, value, lo, hi in reads:
        newer, own = gtids.get((row, value + 1)), gtids.get((row, value))
        wrong += newer is not None and GtidPosition.parse(lo).covers(newer)
        wrong += own is not None and not GtidPosition.parse(hi).covers(own)
    return wrong


def read_all(source: Source, count: int) -> list[tuple[int, int, str, str]]:
    """Reads of all rows in one snapshot each, again and again."""
    reader = SnapshotReader(source.settings)
    table = f"{source.database}.t"
    found: list[tuple[int, int, str, str]] = []
    while len(found) < count:
        read = reader.read({table: [[row] for row in range(WRITERS)]})[table]
        assert isinstance(read, SnapshotRead)
        for selected in read.rows:
            assert isinstance(selected, SelectedRow)
            row = json.loads(selected.image)
            found.append((row["id"], row["v"], read.position, read.hi))
    reader.close()
    return found


def test_reads_lie_between_their_positions_while_others_write(source: Source) -> None:
    """Rows have everything up to lo and nothing after hi, and hi would be wrong without what is being committed."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (0, 0), (1, 0), (2, 0)")
    source.begin()
    with written(source, [plain, tagged, compressed]):
        found = read_all(source, READS)
    gtids = gtids_by_value(source)
    assert len({value for _, value, *_ in found}) > READS / 50
    assert violations(found, gtids) == 0


def test_an_xa_transaction_is_in_the_lower_bound_only_once_it_is_visible(source: Source) -> None:
    """The position of a read never has an XA COMMIT whose rows the read lacks: so no table is held for one."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (0, 0)")
    reader = SnapshotReader(source.settings)
    table = f"{source.database}.t"
    stop = threading.Event()
    committed: dict[int, MysqlGtidSet] = {}

    def write() -> None:
        session = connect(source.settings)
        session.select_db(source.database)
        value = 0
        while not stop.is_set():
            value += 1
            for statement in (f"XA START 'a{value}'", *plain(0, value), f"XA END 'a{value}'", f"XA PREPARE 'a{value}'"):
                session.query(statement)
            session.query(f"XA COMMIT 'a{value}'")
            committed[value] = MysqlGtidSet.of(GtidPosition.parse(source_position(source)).bare)
        session.close()

    wrong = total = 0
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            while total < READS // 2:
                read = reader.read({table: [[0]]})[table]
                assert isinstance(read, SnapshotRead)
                [row] = read.rows
                assert isinstance(row, SelectedRow)
                after = committed.get(json.loads(row.image)["v"] + 1)
                wrong += after is not None and GtidPosition.parse(read.position).covers(after)
                total += 1
        finally:
            stop.set()
            writing.result()
    reader.close()
    assert wrong == 0


def source_position(source: Source) -> str:
    """The server's position, by a session of its own."""
    return source.position()


@pytest.mark.parametrize(
    ("statements", "value"),
    [
        (["CREATE TABLE n LIKE t", "INSERT INTO n VALUES (1, 5)", "RENAME TABLE t TO o, n TO t"], 5),
        (["TRUNCATE t", "INSERT INTO t VALUES (1, 2)"], 2),
        (["ALTER TABLE t ADD COLUMN w INT DEFAULT 7 FIRST, ALGORITHM=INSTANT"], 1),
        (["ALTER TABLE t FORCE, ALGORITHM=COPY"], 1),
    ],
)
def test_a_table_that_changes_while_it_is_read_gives_the_row_of_its_position(
    source: Source, statements: list[str], value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is replaced between a read's first position and its SELECT gives no row of another history."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 1)")
    reader = SnapshotReader(source.settings)
    table = f"{source.database}.t"
    reader.read({table: [[1]]})
    left = [*statements]

    def late(*arguments: object) -> object:
        while left:
            source.run(left.pop(0))
        return rows_by_key(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshot, "rows_by_key", late)
    read = reader.read({table: [[1]]})[table]
    reader.close()
    assert isinstance(read, SnapshotRead)
    (row,) = read.rows
    assert isinstance(row, SelectedRow)
    assert f'"v":{value}'.encode() in row.image
    assert read.hi == source.position()


def test_a_locked_table_does_not_keep_others_from_being_read(source: Source) -> None:
    """A table under LOCK TABLES … WRITE gives its own error in time, and the others their rows."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", "CREATE TABLE u (id INT PRIMARY KEY)")
    reader = SnapshotReader(source.settings)
    t, u = f"{source.database}.t", f"{source.database}.u"
    reader.read({t: [[1]], u: [[1]]})
    source.run("LOCK TABLES u WRITE")
    began = time.monotonic()
    read = reader.read({t: [[1]], u: [[1]]}, timeout_s=6.0)
    assert time.monotonic() - began < 30
    source.run("UNLOCK TABLES")
    assert isinstance(read[t], SnapshotRead)
    assert isinstance(read[u], SourceTimeout)
    reader.close()


def test_keys_and_ranges_are_read_as_the_server_compares_them(source: Source) -> None:
    """Spellings that a collation considers equal find the row under its own key; ranges come in the key's order."""
    source.run(
        "CREATE TABLE t (k VARCHAR(20) COLLATE utf8mb4_0900_ai_ci, n INT, PRIMARY KEY (k, n))",
        "INSERT INTO t VALUES ('Abc', 1), ('straße', 2), ('x ', 3), ('b', 10), ('b', 9)",
    )
    reader = SnapshotReader(source.settings)
    table = f"{source.database}.t"
    read = reader.read({table: [["ABC", 1], ["STRASSE", 2], ["x", 3], ["x ", 3], ["b", 9], ["nix", 0]]})[table]
    assert isinstance(read, SnapshotRead)
    found = [json.loads(row.image)["k"] if isinstance(row, SelectedRow) else row for row in read.rows]
    assert found == ["Abc", "straße", None, "x ", "b", None]
    ranged = reader.read_range(table, KeyRange(leading=("B",), limit=10))
    assert isinstance(ranged, SnapshotRead)
    assert [json.loads(row.image)["n"] for row in ranged.rows.rows] == [9, 10]
    assert read.is_primary
    reader.close()


def test_a_value_that_its_column_cannot_hold_is_a_bad_key(source: Source) -> None:
    """MySQL fails where MariaDB finds nothing. It is the request's fault, by key and as the end of a page."""
    source.run(
        "CREATE TABLE t (d DATE, m DATETIME(3), t TIMESTAMP, h TIME, l VARCHAR(5) CHARACTER SET latin1"
        ", PRIMARY KEY (d, m, t, h, l))"
    )
    reader, table = SnapshotReader(source.settings), f"{source.database}.t"
    possible = ["2024-01-01", "2024-01-01 01:02:03.000", "2024-01-01 01:02:03", "01:02:03", "é"]
    for at, value in {0: "2024-13-01", 1: "abc", 2: "", 4: "Ж"}.items():
        key = [*possible[:at], value, *possible[at + 1 :]]
        read = reader.read({table: [possible, key]})[table]
        assert isinstance(read, SnapshotRead)
        for found in (read.rows[1], reader.read_range(table, KeyRange(limit=3, after=key))):
            assert isinstance(found, KeyNotPossible), (value, found)
    reader.close()
