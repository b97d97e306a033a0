"""A metastore that answers what was not asked, or what a write has overtaken: nothing of it becomes a fresh answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from consumers.fold.catalog_state import decode_binding, decode_table, name_key, table_key
from stream.sources.hive.live import fetching
from stream.sources.hive.live.following import Following, FollowOptions
from stream.sources.hive.live.metastore import Metastore, MetastoreSettings, ServerList, Transactions
from stream.sources.hive.live.partitions import Pass
from stream.sources.hive.messages import HiveMessageError, TableObject
from stream.sources.hive.rpc.connection import MetastoreConnection, MetastoreUnreachable
from stream.sources.hive.rpc.thrift import long, record, text
from stream.sources.hive.structs import LIST, STRUCT, ListValue
from stream.sources.status import SourceStatus
from stream.wire.events import (
    AbortTransaction,
    CommitTransaction,
    ObjectImage,
    ResumePoint,
    SourceTransaction,
    TableImage,
    VoidTable,
)
from tests.lab.workload.folded import Folded
from tests.serving.stack import eventually
from tokens.writeid_state import WriteIds

BEGIN = 5
"""The last event before the source begins."""
SETTINGS = MetastoreSettings((("127.0.0.1", 1),))


class Server:
    """A metastore with one transactional table, ``d.t``; what it answers of it can be told wrong."""

    catalog = "hive"

    def __init__(self) -> None:
        self.shown = TableObject("d.t", 7, True, True, b'{"v":"1"}', b"", ())
        self.lists = {"d.t": ServerList(3, (), ())}
        self.log: list[dict[str, Any]] = []
        self.running = Transactions(0, frozenset(), frozenset())
        self.is_away = False
        """Whether it does not answer the next time that it is asked who points to a table."""
        self.amid_details: list[str] = []
        """Tables, or "" for any, of events that nobody can read, and that come while constraints are read."""
        self.after_read: list[str] = []
        """Events that only name the table, and come while its first answer is on its way, with another version."""

    def last_event(self) -> int:
        """The log's end."""
        return BEGIN + len(self.log)

    def events(self, after: int, _: int) -> list[dict[str, Any]]:
        """What follows."""
        return self.log[max(0, after - BEGIN) :]

    def log_transaction(self, kind: str, **message: int) -> None:
        """An event that names no table."""
        text = json.dumps({"server": "", "timestamp": 1} | message)
        self.log.append({"eventId": self.last_event() + 1, "eventTime": 1, "eventType": kind, "message": text})

    def log_unreadable(self, table: str) -> None:
        """An event of the table, or ("") of any, that nobody can read."""
        event = {"eventId": self.last_event() + 1, "eventTime": 1, "eventType": "UNHEARD_OF", "message": "{}"}
        self.log.append(event | ({"dbName": "d", "tableName": "t"} if table else {}))

    def write(self, kind: str) -> None:
        """An event that only names the table, and what it changes."""
        event = {"eventId": self.last_event() + 1, "eventTime": 1, "eventType": kind, "dbName": "d", "tableName": "t"}
        self.log.append(event | {"message": '{"server":"","dbName":"d","tableName":"t"}'})
        self.shown = replace(self.shown, image=b'{"v":"2"}')

    def tables(self, names: Sequence[str]) -> dict[str, TableObject]:
        """The table, as it was before what comes meanwhile."""
        shown = self.shown
        while self.after_read and names:
            self.write(self.after_read.pop())
        return {name: shown for name in names if name == "d.t"}

    def write_ids(self, *_: object) -> dict[str, ServerList]:
        """Its list."""
        return self.lists

    def transactions(self) -> Transactions:
        """As the test says."""
        return self.running

    def without_collapse(self, *_: object) -> dict[str, ServerList]:
        """Nothing is collapsed."""
        return {}

    def databases(self) -> list[str]:
        """The one."""
        return ["d"]

    def table_names(self, _: str) -> list[str]:
        """The one."""
        return ["d.t"]

    def database(self, _: str) -> dict[int, Any]:
        """As it is stored."""
        return {}

    def catalog_object(self) -> None:
        """It is not read."""

    def functions(self) -> list[Any]:
        """None."""
        return []

    def constraints(self, _: str) -> dict[int, Any]:
        """None."""
        while self.amid_details:
            self.log_unreadable(self.amid_details.pop())
        return {}

    def table(self, _: str) -> None:
        """Nobody reads its partitions."""

    def pointing_to(self, name: str) -> list[str]:
        """The one that it was told."""
        if self.is_away:
            self.is_away = False
            raise MetastoreUnreachable("no metastore answers")
        return [name]

    def statistics(self, *_: object) -> None:
        """None."""

    def close(self) -> None:
        """Nothing is open."""


class Source:
    """What a source publishes of a `Server`, and what becomes of it."""

    def __init__(self, server: Server, names: dict[str, int], cursor: str = "") -> None:
        self.server, self.folded = server, Folded(1)
        self.published: list[SourceTransaction] = []
        self.stamps: list[tuple[int, int]] = []
        self.folded.start(f"HiveEvent/{BEGIN}")
        self.status, at = SourceStatus(), f"HiveEvent/{BEGIN}"
        resume = ResumePoint("hive/0", 1, 1, at, 0, at, names=names, cursor=cursor)
        options = FollowOptions(SETTINGS, "hive/0", threads=1, reconcile_s=3600)
        self.following = Following(options, self, cast("Metastore", server), resume, self.status, None)

    def publish(self, txn: SourceTransaction) -> None:
        """Keeps and folds it."""
        self.published.append(txn)
        self.folded.publish([txn])

    def stamp(self, as_of_ms: int) -> None:
        """Keeps it, with what was published by then."""
        self.stamps.append((as_of_ms, len(self.published)))

    def flush(self) -> None:
        """Everything is there."""

    def sweep(self) -> None:
        """Until every table was published, or given up for now."""

        def has_swept() -> bool:
            worked = self.following.step()
            return self.following.has_swept and not worked

        eventually(has_swept, what="the sweep")

    def complete(self) -> None:
        """Until all that belongs to the tables was published, too."""
        eventually(lambda: not self.following.step() and self.following.is_complete, what="what belongs to the tables")

    def images(self) -> list[tuple[int, bytes | None, str]]:
        """(table id, image, last event before it was read) of what was published of tables."""
        changes = [each for txn in self.published for each in txn.changes]
        return [(each.table_id, each.image, each.lo) for each in changes if isinstance(each, TableImage) and each.image]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """A metastore that every connection of a source is one to."""
    made = Server()
    monkeypatch.setattr(fetching, "Metastore", lambda _: made)
    return made


@pytest.fixture
def source(server: Server) -> Iterator[Source]:
    """A source whose topic has bound ``d.t`` to table 7."""
    made = Source(server, {"d.t": 7})
    yield made
    made.following.close()


@pytest.mark.parametrize(("ended", "told"), [("COMMIT_TXN", CommitTransaction), ("", AbortTransaction)])
def test_a_transaction_whose_end_is_not_read_yet_is_not_aborted(
    server: Server, source: Source, monkeypatch: pytest.MonkeyPatch, ended: str, told: type
) -> None:
    """The server says that it is over. Only if the log has no event of that by then it was aborted without one."""
    source.sweep()
    server.log_transaction("OPEN_TXN", fromTxnId=5, toTxnId=5)
    source.following._drain(server.last_event())
    if ended:
        server.log_transaction(ended, txnid=5)
    server.running = Transactions(5, frozenset(), frozenset())
    monkeypatch.setattr(source.following, "_reconcile_at_s", 0.0)
    source.following._reconcile()
    ends = [each for txn in source.published for each in txn.changes]
    assert [type(each) for each in ends if isinstance(each, CommitTransaction | AbortTransaction)] == [told]


@pytest.mark.parametrize("kind", ["DELETE_TBL_COL_STAT_EVENT", "UPDATE_TBL_COL_STAT_EVENT"])
def test_a_write_of_a_table_that_is_not_known_yet_has_it_read_again(server: Server, kind: str) -> None:
    """The planted bug ``write_of_an_unknown_table``: what was read before the event is not published after it."""
    server.after_read = [kind]
    source = Source(server, {})
    try:
        source.sweep()
        assert [image for _, image, _ in source.images()] == [b'{"v":"2"}']
        assert {lo for _, _, lo in source.images()} == {f"HiveEvent/{BEGIN + 1}"}
    finally:
        source.following.close()


@pytest.mark.parametrize("is_amid", [False, True])
@pytest.mark.parametrize("voided", ["d.t", ""])
def test_what_belongs_to_a_table_is_read_again_after_a_void(
    server: Server, source: Source, voided: str, is_amid: bool
) -> None:
    """It may have changed. What was being read meanwhile would pass for newer than the event that nobody can read."""
    source.complete()
    if is_amid:
        server.amid_details = [voided]
        source.following._details.want(7)
    else:
        server.log_unreadable(voided)
    source.complete()
    changes = [each for txn in source.published for each in txn.changes]
    [void] = [at for at, each in enumerate(changes) if isinstance(each, VoidTable)]
    later = [each for each in changes[void:] if isinstance(each, ObjectImage) and each.hi]
    assert {each.kind for each in later} >= {"constraints", "statistics"}
    assert {each.lo for each in later} == {f"HiveEvent/{BEGIN + 1}"}


@pytest.mark.parametrize("going_on", ["a sweep", "details", "a pass", "nothing"])
def test_what_the_log_said_is_kept_while_anything_is_fetched(
    server: Server, source: Source, monkeypatch: pytest.MonkeyPatch, going_on: str
) -> None:
    """By that it is seen that what arrives is older. It is forgotten once nothing can arrive."""
    source.sweep()
    following = source.following
    server.log_transaction("OPEN_TXN", fromTxnId=5, toTxnId=5)
    following._drain(server.last_event())
    server.running = Transactions(5, frozenset({5}), frozenset())
    following._rebound["d.t"] = following._images.touched["d.t"] = server.last_event()
    following._foreign_keys.changed_with(server.last_event(), [VoidTable("d.t", "")])
    following._progress.sweeping = going_on == "a sweep"
    following._progress.detailed = "" if going_on == "details" else None
    following._partitions._passes |= {7: cast("Pass", None)} if going_on == "a pass" else {}
    monkeypatch.setattr(following, "_reconcile_at_s", 0.0)
    following._reconcile()
    kept = (
        "d.t" in following._rebound,
        "d.t" in following._images.touched,
        following._foreign_keys.touched_at(["d.t"]) > 0,
    )
    assert kept == (going_on != "nothing",) * 3
    is_kept = following._recent.brought_forward("d.t", WriteIds(), BEGIN, {})
    assert is_kept == (going_on == "a sweep"), "what else is fetched brings no lists, and may go on for hours"


def test_an_answer_with_another_id_is_another_table(server: Server, source: Source) -> None:
    """Nothing in the log said so: the name is bound to what was answered, and the old id keeps nothing of it."""
    server.shown = replace(server.shown, table_id=8)
    source.sweep()
    assert {table_id for table_id, _, _ in source.images()} == {8}
    [entries] = source.folded.entries
    assert decode_binding(entries[name_key("d.t")]).table_id == 8
    assert decode_table(entries[table_key(8)]).image == b'{"v":"1"}'
    assert table_key(7) not in entries or decode_table(entries[table_key(7)]).image is None


@pytest.mark.parametrize("answered", [{}, {"d.u": ServerList(9, (), ())}])
def test_a_list_for_another_table_is_none(server: Server, source: Source, answered: dict[str, ServerList]) -> None:
    """The table is void until the metastore answers with its own, which it is asked for again."""
    server.lists = answered
    source.sweep()
    changes = [each for txn in source.published for each in txn.changes]
    assert source.images() == []
    assert any(isinstance(each, VoidTable) and each.table == "d.t" for each in changes)
    assert list(source.following._images.unreadable) == ["d.t"], "it is tried again"
    server.lists = {"d.t": ServerList(3, (), ())}
    source.following._progress.touch(["d.t"])
    source.sweep()
    assert [image for _, image, _ in source.images()] == [b'{"v":"1"}']


class Answering:
    """A connection that gives one answer to whatever it is asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def call(self, *_: object, **__: object) -> Any:
        """The answer."""
        return self.answer


@pytest.mark.parametrize("answered", ["t", "T", "u", ""])
def test_a_table_that_was_not_asked_for_is_refused(answered: str) -> None:
    """``get_table_req`` of another table's name, as of a proxy that mixes answers up, is an error, not an answer."""
    of = {1: text(answered), 2: text("d"), 17: text("hive"), 25: long(7), 12: text("EXTERNAL_TABLE")}
    metastore = Metastore(SETTINGS)
    metastore._connection = cast("MetastoreConnection", Answering({1: record(of)}))
    if answered.lower() == "t":
        found = metastore.table("d.t")
        assert found is not None
        assert (found.name, found.table_id) == ("d.t", 7)
    else:
        with pytest.raises(HiveMessageError):
            metastore.table("d.t")


def test_lists_are_kept_by_the_table_that_they_name() -> None:
    """A list that names another table is that table's, whatever was asked."""
    listed = {1: text("D.U"), 2: long(4), 3: (LIST, ListValue(STRUCT, [])), 5: text("")}
    metastore = Metastore(SETTINGS)
    answer = {1: (LIST, ListValue(STRUCT, [listed, {**listed, 1: text("d.v"), 4: long(6)}]))}
    metastore._connection = cast("MetastoreConnection", Answering(answer))
    assert metastore.write_ids(["d.t"]) == {"d.u": ServerList(4, (), ()), "d.v": ServerList(4, (), (), 6)}


def test_an_event_is_published_once_although_nobody_tells_at_first_who_points_to_its_table(
    server: Server, source: Source
) -> None:
    """The metastore is asked behind the translation, which is not made twice. Nothing after the event comes first."""
    source.sweep()
    server.write("ADD_PRIMARYKEY")
    server.write("UPDATE_TBL_COL_STAT_EVENT")
    server.is_away = True
    with pytest.raises(MetastoreUnreachable):
        source.following.step()
    assert [txn.position for txn in source.published][-1] == f"HiveEvent/{BEGIN}"
    source.sweep()
    positions = [txn.position for txn in source.published if any(isinstance(each, TableImage) for each in txn.changes)]
    written = [each for each in positions if each != f"HiveEvent/{BEGIN}"]
    assert written[:2] == [f"HiveEvent/{BEGIN + 1}", f"HiveEvent/{BEGIN + 2}"]
    assert server.shown.image in {image for _, image, _ in source.images()}


def test_a_transaction_that_was_opened_behind_the_servers_list_is_not_aborted(
    server: Server, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read further than the list, which does not name it: what it writes would be taken for aborted."""
    source.sweep()
    server.running = Transactions(4, frozenset(), frozenset())
    server.log_transaction("OPEN_TXN", fromTxnId=5, toTxnId=5)
    monkeypatch.setattr(source.following, "_reconcile_at_s", 0.0)
    source.following._reconcile()
    assert list(source.following._translator.open_transactions) == [5]
