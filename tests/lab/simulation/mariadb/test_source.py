"""The product's source, and the client's tracked connections, run over the simulated server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from lab.simulation.mariadb.server import Break, SimulatedServer
from lab.simulation.mariadb.transactions import Transaction
from serving.client.errors import WriteNotTracked
from serving.client.tracked import TrackedConnection
from stream.sources.mariadb import live_schema
from stream.sources.mariadb.binlog.catalog import read_held
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.connection import MariaDBError, MariaDBUnreachable
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.source import MariaDBSource, SourceOptions
from stream.sources.mariadb.watch import DumpWatch, ServerClock
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

    def open(
        self, start_if_new: Callable[[], tuple[str, int]], _: Callable[[str], None] | None = None, /
    ) -> ResumePoint:
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
        kept = self.at.annotations if self.at is not None else {}
        self.at = ResumePoint("s", len(self.epochs), 0, position, timestamp, position, annotations=kept)
        return self.at

    def stamp(self, as_of_ms: int) -> None:
        """Keep the server's clock."""
        self.stamps.append(as_of_ms)

    def flush(self) -> None:
        """Everything is out already."""

    def close(self) -> None:
        """Nothing is open."""

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """Keep words."""
        assert self.at is not None
        self.at.annotations |= annotations

    def has_room(self, _: float = 0.0, /) -> bool:
        """Everything is out already."""
        return True

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


def test_a_source_starts_beside_a_locked_table(shop: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """It publishes the others, and describes that one once it is free."""
    monkeypatch.setattr(live_schema, "AGAIN_S", 0.0)
    shop.server.locks.hold_table("admin", ("s", "b"))
    publisher = Recorder()
    source = MariaDBSource(SourceOptions(SETTINGS, "s", TableFilter(("s",))), lambda: publisher)

    def next_step(count: int) -> None:
        changes = publisher.transactions[-1].changes
        if count == 1:
            shop.run("INSERT INTO s.a VALUES (3, 30)")
        elif RowChange(b"s.a\0[3]", 1, b'{"id":3,"v":30}') in changes:
            shop.server.locks.release("admin")
            shop.run("INSERT INTO s.b VALUES (1, 1)")
        elif any(isinstance(each, DescribeTable) for each in changes):
            shop.run("INSERT INTO s.b VALUES (2, 1)")
        elif RowChange(b"s.b\0[2]", 1, b'{"id":2,"a":1}') in changes:
            source.stop()
        else:  # it was not read yet
            shop.run(f"INSERT INTO s.a VALUES ({10 + count}, 1)")

    publisher.on_transaction = next_step
    source.run()
    changes = [each for txn in publisher.transactions for each in txn.changes]
    assert [each.table for each in changes if isinstance(each, DescribeTable)] == ["s.a", "s.b"]
    assert [each.table for each in changes if isinstance(each, VoidTable)] == ["s.b"]
    assert [each.key for each in changes if isinstance(each, RowChange) and each.key.startswith(b"s.b")] == [
        b"s.b\0[2]"
    ]


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


@pytest.mark.parametrize("words", ["its own", "of a newer version", "none"])
def test_a_source_that_begins_again_goes_on_holding_what_reads_cannot_see(shop: Installation, words: str) -> None:
    """An XA COMMIT is in the log, and reads see it later: until then no source may let its table be cached.

    So it is, too, where an older or a newer version has published until now: the table waits for all that is prepared.
    """
    publisher, xid, other = Recorder(), (b"x", b""), (b"y", b"")
    statements = ("XA START 'x'", "UPDATE s.a SET v = 11", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")

    def commit() -> None:
        shop.run(*statements)
        shop.server.prepared[xid] = Transaction()  # as XA RECOVER has it until the engine has committed

    def cacheable() -> set[str]:
        assert publisher.at is not None
        return {name for name, each in publisher.at.descriptions.items() if each.cacheable}

    follow(publisher, {1: commit, 3: lambda: shop.run("INSERT INTO s.b VALUES (1, NULL)")})
    assert publisher.at is not None
    assert cacheable() == {"s.b"}
    kept = publisher.at.annotations
    assert read_held(kept["held"]) == {"s.a": {(1, *xid)}}
    if words == "of a newer version":
        kept["held"] = kept["held"].replace('"version": 1', '"version": 2')
    elif words == "none":
        del kept["held"]
    shop.server.prepared[other] = Transaction()
    follow(publisher, {4: lambda: None})
    assert cacheable() == {"s.b"}
    assert read_held(kept["held"]) == {"s.a": {(1, *xid)} | ({(1, *other)} if words != "its own" else set())}
    if words != "its own":
        del shop.server.prepared[other]
    del shop.server.prepared[xid]
    follow(publisher, {5: lambda: None})
    assert cacheable() == {"s.a", "s.b"}
    assert {each.table for each in publisher.transactions[4].changes if isinstance(each, VoidTable)} == {"s.a"}
    assert kept["held"] == ""


def test_a_new_epoch_goes_on_holding_what_reads_cannot_see(shop: Installation) -> None:
    """It begins after the XA COMMIT, which is not read again."""
    publisher, xid = Recorder(), (b"x", b"")

    def commit() -> None:
        shop.run("XA START 'x'", "UPDATE s.a SET v = 11", "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")
        shop.server.prepared[xid] = Transaction()

    follow(publisher, {1: commit, 3: lambda: None})
    shop.run("RESET MASTER", "INSERT INTO s.b VALUES (1, NULL)")
    follow(publisher, {4: lambda: None})
    assert publisher.epochs == ["history_lost"]
    assert publisher.at is not None
    assert {name: each.cacheable for name, each in publisher.at.descriptions.items()} == {"s.a": False, "s.b": True}
    del shop.server.prepared[xid]
    shop.run("INSERT INTO s.b VALUES (2, NULL)")
    follow(publisher, {5: lambda: None})
    assert publisher.at.descriptions["s.a"].cacheable


def clock_told(shop: Installation) -> ServerClock | None:
    """The clock that a watch of server 1's log is told at the address of today."""
    watch = DumpWatch(SETTINGS, 1)
    watch.check(f"MariaDB/{shop.server.log.position}")
    watch.close()
    return watch.clock_seen


def test_a_clock_is_only_that_of_the_server_whose_log_is_read(shop: Installation) -> None:
    """The address may lead to another server by now: what that one had at some time says nothing of the first one."""
    other = SimulatedServer(shop.waits, id=2, password="secret")
    other.follow(shop.server)
    other.catch_up()
    other.follow(None)
    assert clock_told(shop) is not None
    shop.servers["db", 3306] = other
    assert clock_told(shop) is None


def test_a_replica_says_no_time(shop: Installation) -> None:
    """It has what it has applied, and can't tell how far it is behind its primary. Once promoted it can."""
    shop.server.follow(SimulatedServer(shop.waits, id=2, password="secret"))
    assert clock_told(shop) is None
    shop.server.follow(None)
    assert clock_told(shop) is not None


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


def test_a_connection_that_is_opened_again_does_not_forget_the_lost_commit(shop: Installation) -> None:
    """The new session of the server knows only its own commits."""
    seen: list[str] = []
    tracked = TrackedConnection(shop.connect(), seen.append)
    shop.server.breaks.append(Break("app", "UPDATE", "after"))
    with tracked.cursor() as cursor, pytest.raises(shop.driver.err.OperationalError):
        cursor.execute("UPDATE s.a SET v = 11 WHERE id = 1")
    tracked.connect()
    with pytest.raises(WriteNotTracked):
        tracked.require_settled()
    with tracked.cursor() as cursor:
        cursor.execute("UPDATE s.a SET v = 12 WHERE id = 2")
    with pytest.raises(WriteNotTracked):
        tracked.require_settled()


def test_what_a_closed_connection_was_asked_to_write_is_owed_to_nobody(shop: Installation) -> None:
    """Nothing was sent: pools ask for it again after they opened the connection again."""
    seen: list[str] = []
    tracked = TrackedConnection(shop.connect(), seen.append)
    tracked._force_close()
    with tracked.cursor() as cursor, pytest.raises(shop.driver.err.InterfaceError):
        cursor.execute("UPDATE s.a SET v = 11 WHERE id = 1")
    tracked.connect()
    with tracked.cursor() as cursor:
        cursor.execute("UPDATE s.a SET v = 11 WHERE id = 1")
    tracked.require_settled()
    assert seen == ["0-1-5"]
