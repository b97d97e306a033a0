"""A server that restarts, or loses its history, while a table is read from its beginning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from threading import Event
from typing import Any

import pytest

from freshet.local.mariadb import MariaDBServer
from stream.sources.mariadb.backfill import chunks
from stream.sources.mariadb.backfill.chunks import ChunkReader
from stream.sources.mariadb.backfill.plan import Chunk
from stream.sources.mariadb.schema import TableInfo
from stream.sources.mariadb.selected_rows import canonical_row
from stream.wire.events import VOID
from stream.wire.keys import row_key
from stream.wire.values import UndecodableValue
from tests.patience import PATIENCE_S
from tests.sources.mariadb.backfilling import Backfilled
from tests.sources.mariadb.conftest import Source
from tests.sources.mariadb.test_requirements import LOGGED, replicate
from tests.sources.mariadb.test_source import until

ROWS = 400


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of seven rows, so that a small table has many."""
    monkeypatch.setattr(chunks, "ROWS_MAX", 7)


def fill(source: Source) -> None:
    """A table of numbered rows."""
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)", f"INSERT INTO t SELECT seq, 1 FROM seq_1_to_{ROWS}")


@pytest.mark.slow
@pytest.mark.parametrize("loses_history", [False, True])
def test_a_server_that_comes_back_is_read_on(
    new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source], loses_history: bool
) -> None:
    """After a restart it goes on behind what is published; after a lost history everything is read anew."""
    server = new_mariadb(durable=False)
    fill(source_of(server.address, "d"))
    backfilled = Backfilled(source_of(server.address, "d"), rows_per_s=100)
    with backfilled:
        backfilled.await_rows("t", 20)
        if not loses_history:
            server.stop()
            server.start()
        again = backfilled.source = source_of(server.address, "d")
        again.run("UPDATE t SET v = 2 WHERE id % 10 = 0", f"DELETE FROM t WHERE id IN (1, {ROWS})")
        if loses_history:
            again.run("RESET MASTER", "UPDATE t SET v = 3 WHERE id % 10 = 1")
        backfilled.await_whole("t")
        assert backfilled.begun("t") == 1 + loses_history
        assert backfilled.images("t") == again.selected("t")
        assert backfilled.is_absent("t", ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_replica_that_is_promoted_is_read_on(
    new_mariadb: Callable[..., Any],
    source_of: Callable[[Any, str], Source],
    is_behind: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The primary dies in the middle of a backfill, and a replica takes its address. What it has is read no second
    time; if it has not all that was published, a new epoch reads everything anew."""
    primary = new_mariadb(durable=False)
    fill(first := source_of(primary.address, "d"))
    heir = new_mariadb(durable=False, server_id=2, options=LOGGED)
    replica = source_of(heir.address, "mysql")
    replica.run("RESET MASTER")  # what it wrote itself would be in the primary's place
    replicate(replica, first, "up")
    until(lambda: replica.position() == first.position(), "the replica has everything")
    goes_on, read, chunks_read = Event(), ChunkReader.read, count(1)

    def held(*arguments: Any) -> Chunk:
        if next(chunks_read) > 5:
            goes_on.wait(PATIENCE_S)
        return read(*arguments)

    monkeypatch.setattr(ChunkReader, "read", held)  # so the table is not whole before what has to happen
    with Backfilled(first) as backfilled:
        backfilled.await_rows("t", 20)
        if is_behind:
            replica.run("STOP SLAVE 'up'")
        first.run("UPDATE t SET v = 2 WHERE id % 10 = 0", "DELETE FROM t WHERE id = 1")
        end = first.position()
        backfilled.until(lambda: backfilled.watermark == end)
        until(lambda: is_behind or replica.position() == end, "the replica has the changes")
        assert not backfilled.is_whole("t")
        primary.kill()
        goes_on.set()
        replica.run("STOP ALL SLAVES", "RESET SLAVE 'up' ALL")
        heir.stop()
        with MariaDBServer(heir.data_dir, port=primary.port, durable=False, server_id=2, options=LOGGED) as promoted:
            again = backfilled.source = source_of(promoted.address, "d")
            again.run("UPDATE t SET v = 3 WHERE id % 10 = 1", f"DELETE FROM t WHERE id = {ROWS}")
            backfilled.await_whole("t")
            assert backfilled.begun("t") == 1 + is_behind
            assert backfilled.images("t") == again.selected("t")
            assert backfilled.is_absent("t", ROWS)
            assert backfilled.is_absent("t", 1) is not is_behind


def test_a_row_that_cannot_be_decoded_is_void_and_the_rest_whole(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row of a million must not keep the others out of the cache, and is not absent."""
    decode = canonical_row

    def failing_together(*_: object) -> None:
        raise UndecodableValue("no canonical form")

    def failing(table: TableInfo, values: Sequence[bytes | None]) -> bytes:
        if values[0] == b"13":
            raise UndecodableValue("no canonical form")
        return decode(table, values)

    monkeypatch.setattr(chunks, "canonical_rows", failing_together)
    monkeypatch.setattr(chunks, "canonical_row", failing)
    fill(source)
    bad = row_key(f"{source.database}.t", [13])
    with Backfilled(source) as backfilled:
        backfilled.await_whole("t")
        assert backfilled.kinds("t")[bad] == VOID
        assert not backfilled.is_absent("t", 13)
        assert backfilled.is_absent("t", ROWS + 1)
        assert backfilled.images("t").keys() == source.selected("t").keys() - {bad}
