"""What a source notes of the log and of what it fetches, so that each table is read again when it must be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from stream.sources.hive.live import fetching
from stream.sources.hive.live.members import read_chunk
from stream.sources.hive.live.metastore import Transactions
from stream.sources.hive.live.notification_log import HiveHistoryLost
from stream.sources.hive.progress import Progress
from stream.sources.hive.rpc.connection import MetastoreUnreachable
from stream.sources.hive.structs import ThriftError
from stream.wire.events import BindName, ObjectImage, ObjectSet, TableImage
from tests.serving.stack import eventually
from tests.sources.hive.test_wrong_answers import BEGIN, SETTINGS, Server, Source

NAMES = {"d.t": 7, "d.gone": 9}


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    """A source whose topic has bound a table that its server has not, too."""
    server = Server()
    monkeypatch.setattr(fetching, "Metastore", lambda _: server)
    made = Source(server, NAMES)
    yield made
    made.following.close()


def test_a_table_that_went_without_an_event_is_forgotten_after_a_sweep(source: Source) -> None:
    """Its last image would be answered for good: no event of it will come. It may live on under another name."""
    source.complete()
    changes = [each for txn in source.published for each in txn.changes]
    dropped = [each.table_id for each in changes if isinstance(each, TableImage) and each.change == "dropped"]
    assert (dropped, source.following._translator.tables) == ([], {"d.t": 7})
    assert BindName("d.gone", 0) in changes


@pytest.mark.parametrize("error", [MetastoreUnreachable("no metastore answers"), ThriftError("the answer is cut off")])
def test_a_sweep_whose_fetch_failed_reads_the_same_tables_again(
    source: Source, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Else those of the chunk that failed would be unknown until their next event."""
    fails, tables = [error], source.server.tables

    def failing(names: list[str]) -> object:
        if fails:
            raise fails.pop()
        return tables(names)

    monkeypatch.setattr(source.server, "tables", failing)
    with pytest.raises(type(error)):
        source.sweep()
    source.sweep()
    assert [table_id for table_id, _, _ in source.images()] == [7]


def test_an_id_that_does_not_follow_those_before_has_its_tables_list_read_again(source: Source) -> None:
    """The server may have set those between without an event."""
    source.complete()
    server = source.server
    message = {"txnIdList": [5], "writeIdList": [10], "dbName": "d", "tableName": "t"}
    event = {"eventId": server.last_event() + 1, "eventTime": 1, "eventType": "ALLOC_WRITE_ID_EVENT"}
    server.log.append(event | {"message": json.dumps(message)})
    source.following._drain(server.last_event())
    assert list(source.following._progress.dirty) == ["d.t"]


@pytest.mark.parametrize("event", ["INSERT", "UPDATE_TBL_COL_STAT_EVENT"])
def test_a_table_that_is_written_without_a_pause_keeps_nothing_else_waiting(
    source: Source, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """Each time that it is fetched it has been written again: a sweep would never end, and most reads find nothing."""
    server, tables = source.server, source.server.tables

    def written_again(names: list[str]) -> object:
        found = tables(names)
        if "d.t" in names:
            server.write(event)
        return found

    monkeypatch.setattr(server, "tables", written_again)
    following = source.following
    progress = following._progress

    def is_done() -> bool:
        following.step()
        left = progress.sweeping, progress.parted is not None, progress.detailed is not None, progress.objects_due
        return not any(left)

    eventually(is_done, what="all else")
    assert "d.t" in progress.dirty, "it is still written"


def test_a_table_that_the_sweep_leaves_dirty_gets_all_that_belongs_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no id before it is fetched, so the sweeps of partitions and constraints pass it over."""
    server = Server()
    monkeypatch.setattr(fetching, "Metastore", lambda _: server)
    tables, writes = server.tables, ["DELETE_TBL_COL_STAT_EVENT"] * 6

    def written_again(names: list[str]) -> object:
        found = tables(names)
        if "d.t" in names and writes:
            server.write(writes.pop())
        return found

    monkeypatch.setattr(server, "tables", written_again)
    made = Source(server, {})
    made.complete()
    changes = [each for txn in made.published for each in txn.changes]
    kinds = {each.kind for each in changes if isinstance(each, ObjectImage | ObjectSet) and each.table_id == 7}
    assert not writes
    assert {"constraints", "statistics"} <= kinds
    made.following.close()


def test_a_rename_touches_both_names(source: Source) -> None:
    """What is fetched meanwhile under either may be of another table."""
    source.complete()
    following = source.following
    following._progress.touch(["d.t"])
    following._note(9, BindName("d.u", 7, "d.t"))
    assert {name: following._images.touched.get(name) for name in ("d.t", "d.u")} == {"d.t": 9, "d.u": 9}
    assert {name: following._rebound.get(name) for name in ("d.t", "d.u")} == {"d.t": 9, "d.u": 9}
    assert list(following._progress.dirty) == ["d.u"]


def test_what_is_fetched_has_the_time_of_the_last_event(source: Source) -> None:
    """The markers of a catalog would say that nothing of it is known since the source began."""
    source.complete()
    source.server.log_transaction("OPEN_TXN", fromTxnId=5, toTxnId=5)
    source.following._drain(source.server.last_event())
    source.following._progress.touch(["d.t"])
    source.complete()
    last = source.published[-1]
    assert (last.position, last.timestamp) == (f"HiveEvent/{BEGIN + 1}", 1)
    assert source.following._status.timestamp == 1


@pytest.mark.parametrize("is_due", [False, True])
def test_a_restart_goes_on_with_what_was_left_to_be_fetched(is_due: bool) -> None:
    """Statistics that nobody told, and what belongs to no table. Of a table that is gone nothing is left."""
    progress = Progress()
    progress.sweeping, progress.parted, progress.detailed, progress.objects_due = False, None, None, is_due
    made = Source(Server(), NAMES, progress.cursor(["d.t"], ["d.t", "d.other"]))
    assert made.following._partitions.untold == ["d.t"]
    assert made.following._objects.is_due is is_due
    assert list(made.following._progress.dirty) == ["d.t"]
    made.following.close()


def test_a_restart_tries_again_what_was_refused(source: Source) -> None:
    """No event tells that a metastore can read it again."""
    following = source.following
    source.complete()
    following._partitions._refusals.note(7)
    following._details._refusals.note("d.u")
    following._images.unreadable.note("d.v")
    assert set(Progress(following._cursor()).dirty) == {"d.t", "d.u", "d.v"}


def test_a_chunk_is_read_between_two_looks_at_the_log() -> None:
    """What is written while its statistics are read must count as later than they are."""
    asked: list[str] = []

    def answer(what: str, value: Any) -> Any:
        asked.append(what)
        return value

    metastore: Any = SimpleNamespace(
        last_event=lambda: answer("end", 5 + len(asked)),
        partitions_by_names=lambda *_: answer("partitions", []),
        partition_statistics=lambda *_: answer("statistics", []),
    )
    found = read_chunk(metastore, "d.t", ["c"], ["p=a"])
    assert asked == ["end", "partitions", "statistics", "end"]
    assert (found.lo, found.hi) == (5, 8)


def test_a_list_of_transactions_is_as_old_as_the_log_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends between the two would else be in neither, and its write would never count."""
    server = Server()
    transactions = server.transactions

    def ending() -> Transactions:
        found = transactions()
        server.log_transaction("COMMIT_TXN", txnid=5)
        return found

    monkeypatch.setattr(server, "transactions", ending)
    monkeypatch.setattr(fetching, "Metastore", lambda _: server)
    fetcher = fetching.Fetcher(SETTINGS, 1, 60.0)
    found = fetcher.submit(("d.t",)).result()
    fetcher.close()
    assert (found.listed_at, found.lo, fetcher.oldest_list()) == (BEGIN, BEGIN + 1, BEGIN)


@pytest.mark.parametrize("newer", [0, 1])
def test_a_log_that_was_lost_and_is_as_long_again_is_noticed(
    source: Source, monkeypatch: pytest.MonkeyPatch, newer: int
) -> None:
    """What it had at the position is not what was published. Its events would be taken for those that follow."""
    source.complete()
    log_other = source.server.log_transaction
    log_other("OPEN_TXN", fromTxnId=5, toTxnId=5)
    source.following._drain(BEGIN + 1)
    source.server.log.clear()
    for txn in range(6, 7 + newer):
        log_other("OPEN_TXN", fromTxnId=txn, toTxnId=txn)
    monkeypatch.setattr(source.following._log, "_look_at_s", 0.0)
    monkeypatch.setattr(source.following._log, "_followed_s", 0.0)
    with pytest.raises(HiveHistoryLost):
        source.following.step()


@pytest.mark.parametrize("is_after_an_outage", [False, True])
def test_a_log_is_compared_with_what_was_published_after_an_outage_or_an_idle_second(
    source: Source, monkeypatch: pytest.MonkeyPatch, is_after_an_outage: bool
) -> None:
    """Not with each read: a busy log would be asked twice as often. Events that were cleaned away are no loss."""
    source.complete()
    server, following, asked = source.server, source.following, list[int]()
    log_transaction, events = server.log_transaction, server.events
    log_transaction("OPEN_TXN", fromTxnId=5, toTxnId=5)
    following._drain(BEGIN + 1)
    monkeypatch.setattr(following._log, "_look_at_s", inf)
    monkeypatch.setattr(following._log, "_followed_s", inf)

    def counted(after: int, count: int) -> list[dict[str, Any]]:
        asked.append(after)
        if is_after_an_outage and len(asked) == 1:
            raise MetastoreUnreachable("no metastore answers")
        return [each for each in events(after, count) if each["eventId"] != BEGIN + 1][:count]

    monkeypatch.setattr(server, "events", counted)
    log_transaction("COMMIT_TXN", txnid=5)
    with pytest.raises(MetastoreUnreachable) if is_after_an_outage else nullcontext():
        following._read_events()
    if is_after_an_outage:
        following._read_events()
    assert asked == ([BEGIN + 1, BEGIN + 1, BEGIN] if is_after_an_outage else [BEGIN + 1])
    assert following._log.at == BEGIN + 2
