"""The product's source, and the client's tracked connections, run over the simulated server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from lab.simulation.mariadb.server import Break
from serving.client.errors import WriteNotTracked
from serving.client.tracked import TrackedConnection
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.connection import MariaDBError, MariaDBUnreachable
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.source import MariaDBSource, SourceOptions
from stream.wire.events import DescribeTable, ResumePoint, RowChange, SourceTransaction, VoidTable
from tests.lab.simulation.mariadb.conftest import SETTINGS, Installation


class Recorder:
    """A publisher that keeps what it is given. ``on_transaction`` is called after each one."""

    def __init__(self) -> None:
        self.at: ResumePoint | None = None
        self.transactions: list[SourceTransaction] = []
        self.epochs: list[str] = []
        self.stamps: list[int] = []
        self.on_transaction: Callable[[int], None] = lambda _: None

    def open(self, start_if_new: Callable[[], tuple[str, int]]) -> ResumePoint:
        """Where to resume."""
        if self.at is None:
            position, timestamp = start_if_new()
            self.at = ResumePoint("s", 0, 0, position, timestamp, position)
        return self.at

    def publish(self, txn: SourceTransaction) -> None:
        """Keep a transaction."""
        assert self.at is not None
        self.transactions.append(txn)
        self.at.position, self.at.table_choice = txn.position, txn.table_choice or self.at.table_choice
        self.at.checksum, self.at.cursor = txn.checksum, txn.cursor
        self.at.descriptions |= {each.table: each for each in txn.changes if isinstance(each, DescribeTable)}
        self.on_transaction(len(self.transactions))

    def start_new_epoch(self, position: str, timestamp: int, reason: str) -> ResumePoint:
        """Begin anew."""
        self.epochs.append(reason)
        self.at = ResumePoint("s", len(self.epochs), 0, position, timestamp, position)
        return self.at

    def stamp(self, as_of_ms: int) -> None:
        """Keep the server's clock."""
        self.stamps.append(as_of_ms)

    def flush(self) -> None:
        """Everything is out already."""

    def close(self) -> None:
        """Nothing is open."""

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """No word is kept."""

    def abandon(self) -> None:
        """Nothing is open."""


@pytest.fixture
def shop(installation: Installation) -> Installation:
    """Two tables, one of them below the other, and a few rows."""
    installation.run(
        "CREATE DATABASE s",
        "CREATE TABLE s.a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE s.b (id INT PRIMARY KEY, a INT, FOREIGN KEY (a) REFERENCES a (id) ON DELETE CASCADE)",
        "INSERT INTO s.a VALUES (1, 10), (2, 20)",
    )
    return installation


def follow(publisher: Recorder, steps: dict[int, Callable[[], object]]) -> None:
    """Runs a source. After the n-th transaction it does ``steps[n]``; the last step ends the source."""
    source = MariaDBSource(SourceOptions(SETTINGS, "s", TableFilter(("s",))), lambda: publisher)

    def next_step(count: int) -> None:
        steps.get(count, lambda: None)()
        if count == max(steps):
            source.stop()

    publisher.on_transaction = next_step
    source.run()


def test_a_source_publishes_rows_ddl_and_unlogged_cascades(shop: Installation) -> None:
    """Rows arrive as images, DDL voids and describes, and a cascade voids the child table."""
    publisher = Recorder()
    follow(
        publisher,
        {
            1: lambda: shop.run("INSERT INTO s.b VALUES (1, 1)", "UPDATE s.a SET id = 5 WHERE id = 2"),
            3: lambda: shop.run("DELETE FROM s.a WHERE id = 1"),
            4: lambda: shop.run("ALTER TABLE s.a ADD COLUMN w INT DEFAULT 3"),
            5: lambda: shop.run("UPDATE s.a SET v = 6"),
            6: lambda: None,
        },
    )
    described, inserted, moved, deleted, altered, updated = (list(each.changes) for each in publisher.transactions)
    assert [each.table for each in described if isinstance(each, DescribeTable)] == ["s.a", "s.b"]
    assert inserted == [RowChange(b"s.b\0[1]", 1, b'{"id":1,"a":1}')]
    assert [(each.key, each.image) for each in moved if isinstance(each, RowChange)] == [
        (b"s.a\0[2]", b""),
        (b"s.a\0[5]", b'{"id":5,"v":20}'),
    ]
    assert [each.table for each in deleted if isinstance(each, VoidTable)] == ["s.b"]
    assert [each.table for each in altered if isinstance(each, VoidTable)] == ["s.a"]
    assert updated == [RowChange(b"s.a\0[5]", 1, b'{"id":5,"v":6,"w":3}')]
    assert shop.run("SELECT * FROM s.b") == []


def test_a_source_goes_on_after_a_restart_of_the_server(shop: Installation) -> None:
    """The connection breaks with the server, and nothing is published twice or lost."""
    publisher = Recorder()

    def restart() -> None:
        shop.server.kill()
        shop.server.start()
        shop.run("UPDATE s.a SET v = 12 WHERE id = 1")

    follow(publisher, {1: lambda: shop.run("UPDATE s.a SET v = 11 WHERE id = 1"), 2: restart, 3: lambda: None})
    assert [each.gtid for each in publisher.transactions[1:]] == ["MariaDB/0-1-5", "MariaDB/0-1-6"]
    assert publisher.epochs == []


@pytest.mark.parametrize("gtids_come_again", [False, True])
def test_a_restore_starts_a_new_epoch(shop: Installation, gtids_come_again: bool) -> None:
    """A server that went back to an older state is noticed, also when its GTIDs are used again for other changes."""
    publisher = Recorder()

    def restore() -> None:
        shop.server.restore(4)
        if gtids_come_again:
            shop.run("UPDATE s.a SET v = 99 WHERE id = 2")

    follow(publisher, {1: lambda: shop.run("UPDATE s.a SET v = 11 WHERE id = 1"), 2: restore, 3: lambda: None})
    assert publisher.epochs == ["history_lost"]


def test_a_statement_that_is_logged_as_text_voids_everything(shop: Installation) -> None:
    """A change of which the rows are not in the binlog."""
    publisher = Recorder()
    follow(publisher, {1: lambda: shop.server.log_statement("s", "UPDATE a SET v = 0"), 2: lambda: None})
    assert [each.table for each in publisher.transactions[1].changes if isinstance(each, VoidTable)] == ["*"]


def test_an_xa_transaction_is_read_through_until_it_is_visible(shop: Installation) -> None:
    """Its rows are not published at XA PREPARE, and its COMMIT voids the table."""
    publisher = Recorder()
    statements = ("XA START 'x'", "UPDATE s.a SET v = 11", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")
    follow(publisher, {1: lambda: shop.run(*statements), 3: lambda: None})
    prepared, committed = (list(each.changes) for each in publisher.transactions[1:])
    assert prepared == []
    assert [each.table for each in committed if isinstance(each, VoidTable)] == ["s.a"]
    assert shop.run("SELECT v FROM s.a") == [(11,), (11,)]


def test_a_second_replica_of_the_same_id_ends_the_first_ones_stream(shop: Installation) -> None:
    """The product's error for two sources with one server_id."""
    position = shop.server.log.position
    first = BinlogDump(SETTINGS, position, 7)
    while first.read()[4] != 27:
        pass
    second = BinlogDump(SETTINGS, position, 7)
    with pytest.raises(MariaDBError) as caught:
        first.read()
    assert caught.value.code == "server_id_in_use"
    assert second.read()[4] == 4


def test_a_position_that_the_server_does_not_have_ends_the_stream(shop: Installation) -> None:
    """The server refuses it with error 1236."""
    dump = BinlogDump(SETTINGS, "0-1-99", 8)
    with pytest.raises(MariaDBError, match="1236"):
        dump.read()
    shop.server.kill()
    with pytest.raises(MariaDBUnreachable):
        BinlogDump(SETTINGS, "0-1-4", 8)


def test_after_reset_master_a_connected_replica_gets_heartbeats_but_no_events(shop: Installation) -> None:
    """So only a comparison with the server's state finds out."""
    dump = BinlogDump(SETTINGS, shop.server.log.position, 9)
    while dump.read()[4] != 27:
        pass
    shop.run("RESET MASTER", "UPDATE s.a SET v = 11 WHERE id = 1")
    assert [dump.read()[4] for _ in range(3)] == [27, 27, 27]
    assert shop.server.log.position == "0-1-1"


def test_a_tracked_connection_learns_the_gtid_of_each_commit(shop: Installation) -> None:
    """With autocommit and in transactions; a read commits nothing."""
    seen: list[str] = []
    tracked = TrackedConnection(shop.connect(), seen.append)
    with tracked.cursor() as cursor:
        cursor.execute("UPDATE s.a SET v = 11 WHERE id = 1")
        cursor.execute("SELECT v FROM s.a WHERE id = 1")
        assert cursor.fetchall() == ((11,),)
        tracked.begin()
        cursor.execute("UPDATE s.a SET v = 12 WHERE id = 1")
        assert seen[-1] == "0-1-5"
        tracked.commit()
    assert seen[-1] == "0-1-6"


def test_a_commit_whose_answer_is_lost_stays_unsettled(shop: Installation) -> None:
    """The session must not go on as if nothing had been written."""
    tracked = TrackedConnection(shop.connect(), lambda _: None)
    shop.server.breaks.append(Break("app", "UPDATE", "after"))
    with tracked.cursor() as cursor, pytest.raises(shop.driver.err.OperationalError):
        cursor.execute("UPDATE s.a SET v = 11 WHERE id = 1")
    with pytest.raises(WriteNotTracked):
        tracked.require_settled()
    assert shop.run("SELECT v FROM s.a WHERE id = 1") == [(11,)]
