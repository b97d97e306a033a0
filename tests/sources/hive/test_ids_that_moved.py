"""A metastore keeps write ids by name: what the log said of them before the name changed hands is of another table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from consumers.owner.tables import list_of
from lab.simulation.hive.metastore import Metastore
from stream.sources.hive.live import fetching
from stream.sources.hive.live.metastore import ServerList, Transactions
from stream.sources.hive.recent_ids import RecentWriteIds
from stream.sources.hive.translator import HiveTranslator
from tests.sources.hive.test_wrong_answers import Server, Source
from tokens import ValidWriteIdList
from tokens.writeid_state import WriteIds


def _struct(table_id: int, name: str = "d.t") -> str:
    db, _, table = name.partition(".")
    parameters = ["str", "str", 1, {"transactional": "true"}]
    return json.dumps({"1": {"str": table}, "2": {"str": db}, "9": {"map": parameters}, "25": {"i64": table_id}})


class MadeAnew(Server):
    """A metastore whose table is written, dropped and made anew while its transactions are read."""

    is_readable = True
    """Whether the log tells that it was dropped and made anew. If not, nobody can read what it tells instead."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = replace(self.shown, table_id=8)
        self.lists = {"d.t": ServerList(0, (), ())}

    def transactions(self) -> Transactions:
        """As before what comes meanwhile."""
        if not self.log:
            self._event("OPEN_TXN", txnIds=[50])
            self._event("ALLOC_WRITE_ID_EVENT", dbName="d", tableName="t", txnIdList=[50], writeIdList=[1])
            self._event("COMMIT_TXN", txnid=50)
            if self.is_readable:
                self._event("DROP_TABLE", tableObjJson=_struct(7))
                self._event("CREATE_TABLE", tableObjJson=_struct(8))
            else:
                self.log_unreadable("")
        return Transactions(49, frozenset(), frozenset())

    def _event(self, kind: str, **message: Any) -> None:
        named = {} if kind.endswith("_TXN") else {"dbName": "d", "tableName": "t"}
        event = {"eventId": self.last_event() + 1, "eventTime": 1, "eventType": kind, "message": json.dumps(message)}
        self.log.append(event | named)


@pytest.fixture(params=[True, False], ids=["readable", "unreadable"])
def source(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Source]:
    """A source that begins while the table is made anew."""
    server = MadeAnew()
    server.is_readable = request.param
    monkeypatch.setattr(fetching, "Metastore", lambda _: server)
    made = Source(server, {"d.t": 7})
    yield made
    made.following.close()


def test_a_table_that_is_made_anew_does_not_get_the_writes_of_the_one_before(source: Source) -> None:
    """Its list would have a write id that nobody has got yet, and who sees that one committed a stale answer."""
    source.sweep()
    state = source.folded.table(8)
    assert state is not None
    assert not state.waits_for()
    listed = list_of(state)
    assert listed is not None
    assert not listed.covers(ValidWriteIdList.parse("d.t:1:9223372036854775807::"))


def _renamed(server: Metastore) -> None:
    server.create("s.new", "full")
    server.drop("s.a")
    server.rename("s.new", "s.a")


def _made_anew(server: Metastore) -> None:
    server.drop("s.a")
    server.create("s.a", "full")


def _of_another_database(server: Metastore) -> None:
    server.drop_database("s")
    server.create("s.a", "full")


def _taken(server: Metastore) -> None:
    """A table of the same name in another catalog is renamed."""
    server.rows.clear()
    server.next_ids.clear()
    shown = {"tableObjBeforeJson": _struct(9, "s.a"), "tableObjAfterJson": _struct(9, "s.taken")}
    server.note("ALTER_TABLE", "s.taken", "elsewhere", **shown, writeId=-1)


@pytest.mark.parametrize("moves", [_renamed, _made_anew, _of_another_database, _taken])
def test_a_list_from_before_its_name_changed_hands_is_fetched_again(moves: Callable[[Metastore], None]) -> None:
    """One from after that is brought forward over what followed, as ever."""
    server = Metastore()
    server.create("s.a", "full")
    server.open_txns(2)
    server.allocate("s.a", [1])
    server.end(1, commit=True)
    written_at = len(server.log)
    moves(server)
    moved_at = len(server.log)
    server.allocate("s.a", [2])
    translator, recent = HiveTranslator(), RecentWriteIds(0)
    for row in server.log:
        translator.translate(row)
        recent.note(row["eventId"], translator.write_id_changes)
    assert not recent.brought_forward("s.a", WriteIds(), written_at, {})
    assert recent.brought_forward("s.b", WriteIds(), written_at, {}), "others' lists count as before"
    listed = WriteIds()
    assert recent.brought_forward("s.a", listed, moved_at, {})
    assert listed.full_text("s.a") == "s.a:1:1:1:"
