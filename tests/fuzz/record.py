"""``python -m tests.fuzz.record``: records a real MariaDB's binlog events into ``corpus/binlog.json``, with its tables.

Needed again only when a new server version writes something new: the corpus is kept.
"""

from __future__ import annotations

import json
import random
import tempfile
from base64 import b64encode
from dataclasses import asdict
from pathlib import Path
from typing import Any

from freshet.local.mariadb import MariaDBServer
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.binlog.events import HEADER_SIZE, HEARTBEAT, TABLE_MAP
from stream.sources.mariadb.binlog.table_map import parse_table_map
from stream.sources.mariadb.connection import ConnectionSettings, connect
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.position import current_position
from stream.sources.mariadb.schema import TableFilter
from tests.sources.mariadb.test_images import COLUMNS, name_sql

CORPUS = Path(__file__).parent / "corpus" / "binlog.json"
COMPRESSED = {"log_bin_compress": "ON", "log_bin_compress_min_len": "10"}
LONG = 1_000
"""Literals above it are left out: the corpus is kept in the repository."""
SESSION = (
    "INSERT INTO a VALUES (1, 'one', 1.5), (2, 'two', NULL)",
    "UPDATE a SET v = 'drei' WHERE id = 2",
    "UPDATE a SET id = 9 WHERE id = 1",
    "INSERT INTO parent VALUES (1)",
    "INSERT INTO child VALUES (1, 1)",
    "DELETE FROM parent",
    "START TRANSACTION",
    "INSERT INTO a VALUES (3, REPEAT('x', 300), 2)",
    "SAVEPOINT s",
    "DELETE FROM a WHERE id = 9",
    "ROLLBACK TO s",
    "COMMIT",
    "XA START 'x', 'y', 3",
    "INSERT INTO a VALUES (4, 'xa', 1)",
    "XA END 'x', 'y', 3",
    "XA PREPARE 'x', 'y', 3",
    "XA COMMIT 'x', 'y', 3",
    "ALTER TABLE a ADD COLUMN w INT DEFAULT 7 COMMENT 'it''s `w`'",
    "INSERT INTO a VALUES (5, 'later', 1, 2)",
    "CREATE TABLE b LIKE a",
    "RENAME TABLE b TO c",
    "DROP TABLE c",
    "TRUNCATE TABLE child",
    "SET SESSION binlog_format = STATEMENT",
    "INSERT INTO a VALUES (6, 'as a statement', 1, 2)",
    "SET SESSION binlog_format = ROW",
)


def main() -> None:
    """Records a plain binlog and a compressed one."""
    events: list[bytes] = []
    tables: list[dict[str, Any]] = []
    collations: dict[str, str] = {}
    for options in ({}, COMPRESSED):
        with (
            tempfile.TemporaryDirectory(prefix="freshet-record-") as directory,
            MariaDBServer(Path(directory), options=options) as server,
        ):
            found, tables, collations = _record(server)
        events += found
    unique = list(dict.fromkeys(events))
    CORPUS.write_text(
        json.dumps(
            {
                "collations": collations,
                "tables": tables,
                "events": [b64encode(event).decode() for event in unique],
            },
            indent=0,
            default=lambda _: None,  # bytes that the tables make of their own names
        )
        + "\n"
    )
    print(f"{len(unique)} events, {CORPUS.stat().st_size} bytes in {CORPUS}")


def _record(server: MariaDBServer) -> tuple[list[bytes], list[dict[str, Any]], dict[str, str]]:
    rng = random.Random(1)
    settings = ConnectionSettings(server.host, server.port, server.user, server.password)
    session = connect(settings)
    columns = ", ".join(f"{name_sql(name)} {kind}" for name, (kind, _) in COLUMNS.items())
    with session.cursor() as cursor:
        for statement in (
            "CREATE DATABASE d",
            "USE d",
            "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(400), n DECIMAL(9,2)) CHARACTER SET utf8mb4",
            "CREATE TABLE parent (id INT PRIMARY KEY)",
            "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent(id) ON DELETE CASCADE)",
            f"CREATE TABLE wide (id INT PRIMARY KEY, {columns}) CHARACTER SET utf8mb4",
        ):
            cursor.execute(statement)
    schema = LiveSchema(settings, TableFilter(("d",)))
    schema.load()
    tables = [asdict(table) for table in schema.live.values()]
    start = current_position(session).position
    with session.cursor() as cursor:
        for number in range(3):
            drawn = {name: value(rng) for name, (_, value) in COLUMNS.items()}
            values = ", ".join(f"{name_sql(name)} = {v if len(v) < LONG else 'DEFAULT'}" for name, v in drawn.items())
            cursor.execute(f"INSERT IGNORE INTO wide SET id = {number}, {values}")
        cursor.execute("UPDATE wide SET id = id + 10 WHERE id = 1")
        for statement in SESSION:
            cursor.execute(statement)
    end = current_position(session).position
    session.close()
    events = _events(settings, start, end)
    schema.close()
    mapped = [parse_table_map(event[HEADER_SIZE + 6 :]) for event in events if event[4] == TABLE_MAP]
    used = {column.collation for each in mapped for column in each.columns}
    names = {str(each): schema.charsets.by_collation[each] for each in sorted(used) if each}
    return events, tables, names


def _events(settings: ConnectionSettings, start: str, end: str) -> list[bytes]:
    dump = BinlogDump(settings, start.removeprefix("MariaDB/"), 4_711)
    found = []
    try:
        while True:
            event = dump.read()
            if event[4] == HEARTBEAT:
                break  # the server has nothing more
            found.append(event)
    finally:
        dump.close()
    assert end != start
    return found


if __name__ == "__main__":
    main()
