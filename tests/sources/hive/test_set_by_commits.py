"""Parameters of a table that a COMMIT sets, with no event that says so (HIVE-21206)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from consumers.owner.tables import why_unservable
from lab.simulation.hive import metastore as simulated
from lab.simulation.hive.metastore import Metastore
from stream.sources.hive.live import fetching
from stream.sources.hive.live.metastore import ServerList, Transactions
from stream.sources.hive.messages import TableObject
from stream.sources.hive.translator import HiveTranslator
from stream.wire.events import CommitTransaction, TableImage
from tests.sources.hive.test_wrong_answers import BEGIN, Server, Source


def logged(monkeypatch: pytest.MonkeyPatch, key: str) -> Metastore:
    """A metastore whose table ``s.t`` has a parameter ``key``, and a transaction that has an id of it."""
    full = simulated.PARAMETERS["full"] | {key: "41"}
    monkeypatch.setitem(simulated.PARAMETERS, "full", full)
    server = Metastore()
    server.create("s.t", "full")
    server.open_txns(1)
    server.allocate("s.t", [1])
    return server


@pytest.mark.parametrize(("key", "is_written"), [("_meta.offset", True), ("repl.last.id", True), ("offset", False)])
def test_a_commit_writes_the_table_whose_parameter_it_may_set(
    monkeypatch: pytest.MonkeyPatch, key: str, is_written: bool
) -> None:
    """By its own id, after its end: nobody else's end is awaited."""
    server, translator = logged(monkeypatch, key), HiveTranslator()
    server.end(1, commit=True)
    ended = [translator.translate(row) for row in server.log][-1]
    assert ended is not None
    write = TableImage(1, "s.t", "transactional", "written", 1, 1)
    assert ended.changes == [CommitTransaction(1, ((1, 1),)), *([write] if is_written else [])]


@pytest.mark.parametrize("is_shown", [False, True])
@pytest.mark.parametrize("is_seen", [False, True])
def test_a_restarted_source_takes_each_table_for_one_that_commits_change(
    monkeypatch: pytest.MonkeyPatch, is_seen: bool, is_shown: bool
) -> None:
    """Until the metastore shows it, also where it is not known whose ids the transaction held."""
    server, translator = logged(monkeypatch, "offset"), HiveTranslator(names={"s.t": 1})
    if is_shown:
        translator.bind(TableObject("s.t", 1, True, True, b"{}"))
    server.open_txns(1)
    server.allocate("s.t", [2])
    for row in server.log[1 if is_seen else 3 :]:
        translator.translate(row)
    txn = 2 if is_seen else 1
    server.end(txn, commit=True)
    ended = translator.translate(server.log[-1])
    assert ended is not None
    written = [each for each in ended.changes if isinstance(each, TableImage)]
    expected = TableImage(1, "s.t", "transactional", "written", txn, 2 if is_seen else 0)
    assert written == ([] if is_shown else [expected])


class Streamed(Server):
    """A metastore whose table takes an offset with each COMMIT."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = replace(self.shown, takes_commits=True)
        self.lists = {"d.t": ServerList(0, (), ())}
        self.amid_read: list[int] = []
        """Transactions that commit while the first answer is on its way."""

    def begin(self, txn: int, write_id: int) -> None:
        """A transaction with an id of the table."""
        self.log_transaction("OPEN_TXN", fromTxnId=txn, toTxnId=txn)
        message = {"txnIdList": [txn], "writeIdList": [write_id], "dbName": "d", "tableName": "t"}
        event = {"eventId": self.last_event() + 1, "eventTime": 1, "eventType": "ALLOC_WRITE_ID_EVENT"}
        self.log.append(event | {"message": json.dumps(message)})
        self.running = Transactions(txn, frozenset({txn}), frozenset())

    def commit(self, txn: int) -> None:
        """With an offset."""
        self.log_transaction("COMMIT_TXN", txnid=txn)
        self.shown = replace(self.shown, image=b'{"offset":"%d"}' % txn)

    def tables(self, names: Sequence[str]) -> dict[str, TableObject]:
        """As it was before what comes meanwhile."""
        shown = self.shown
        while self.amid_read:
            self.commit(self.amid_read.pop())
        return {name: shown for name in names if name == "d.t"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Streamed:
    """A metastore that every connection of a source is one to."""
    made = Streamed()
    monkeypatch.setattr(fetching, "Metastore", lambda _: made)
    return made


@pytest.fixture
def source(server: Streamed) -> Iterator[Source]:
    """A source of a new topic."""
    made = Source(server, {})
    yield made
    made.following.close()


def test_a_table_is_read_again_after_a_commit(server: Streamed, source: Source) -> None:
    """The log has COMMIT_TXN alone: the image from before was servable with a list that had the id."""
    source.sweep()
    server.begin(5, 1)
    server.commit(5)
    source.following._drain(server.last_event())
    found = source.folded.table(7)
    assert found is not None
    assert why_unservable(found)
    source.complete()
    found = source.folded.table(7)
    assert found is not None
    assert (found.image, why_unservable(found)) == (b'{"offset":"5"}', "")


@pytest.mark.parametrize("is_seen", [False, True])
def test_what_was_read_before_a_commit_is_not_published_after_it(
    server: Streamed, source: Source, is_seen: bool
) -> None:
    """In a sweep, in which nobody has shown the table yet, so the COMMIT writes nothing."""
    if is_seen:
        server.begin(5, 1)
    server.amid_read = [5]
    source.sweep()
    assert [(image, lo) for _, image, lo in source.images()] == [
        (b'{"offset":"5"}', f"HiveEvent/{BEGIN + (3 if is_seen else 1)}")
    ]
