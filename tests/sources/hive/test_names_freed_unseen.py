"""A table's rename that was not seen frees its old name; the next table of that name is another table.

An event that shows a name from before a rename that was seen is another matter: two clients altered the table at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from consumers.process.replay import Replay
from lab.simulation.hive.metastore import Metastore
from stream.sources.hive.live import fetching
from stream.sources.hive.messages import TableObject
from stream.sources.hive.translator import HiveTranslator
from stream.wire.events import BindName, TableImage
from tests.sources.hive.test_wrong_answers import Server, Source
from tokens import ValidWriteIdList


def test_a_new_table_does_not_begin_with_the_ids_of_the_one_before() -> None:
    """Else its list would cover writes of its own that nobody has folded yet."""
    metastore, replay = Metastore(), Replay()
    metastore.create("s.t", "full")
    for _ in range(5):
        [txn] = metastore.open_txns(1)
        metastore.allocate("s.t", [txn])
        metastore.write("s.t", "INSERT", txn)
        metastore.end(txn, commit=True)
    seen = len(metastore.log)
    for row in metastore.log:
        replay.feed(row)
    metastore.rename("s.t", "s.u")
    after_rename = len(metastore.log)
    assert after_rename > seen
    metastore.write("s.u", "INSERT", shown=True)
    metastore.create("s.t", "full")
    for row in metastore.log[after_rename:]:
        replay.feed(row)
    served = ValidWriteIdList.parse(replay.tables()["s.t"].write_ids)
    [txn] = metastore.open_txns(1)
    metastore.allocate("s.t", [txn])
    metastore.write("s.t", "INSERT", txn)
    metastore.end(txn, commit=True)
    assert not served.covers(ValidWriteIdList.parse(metastore.valid_write_ids("s.t")))


class Altered(Server):
    """A metastore whose one table, external, is called ``name`` by now."""

    name, version, opened = "d.t", 1, 1

    def table_names(self, _: str) -> list[str]:
        """The one."""
        return [self.name]

    def tables(self, names: Sequence[str]) -> dict[str, TableObject]:
        """The one, as it is stored."""
        stored = replace(self.shown, name=self.name, transactional=False, image=b'{"v":"%d"}' % self.version)
        return {name: stored for name in names if name == self.name}

    def partitions_by_names(self, *_: object) -> list[object]:
        """It has no partitions."""
        return []

    partition_statistics = partitions_by_names

    def aggregate_statistics(self, *_: object) -> dict[int, object]:
        """Of no partitions."""
        return {}

    def alter(self, before: str, after: str) -> None:
        """ALTER_TABLE that shows these names, whatever the table is called."""
        self.version += 1
        shown = {which: json.dumps(_shown(name)) for which, name in (("Before", before), ("After", after))}
        message = {f"tableObj{which}Json": text for which, text in shown.items()}
        event = {"eventId": self.last_event() + 1, "eventTime": 1, "eventType": "ALTER_TABLE", "dbName": "d"}
        self.log.append(event | {"tableName": after.partition(".")[2], "message": json.dumps(message)})


def _shown(name: str) -> dict[str, object]:
    db, _, table = name.partition(".")
    return {"1": {"str": table}, "2": {"str": db}, "25": {"i64": 7}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Altered:
    """The metastore."""
    made = Altered()
    monkeypatch.setattr(fetching, "Metastore", lambda _: made)
    return made


@pytest.fixture
def source(server: Altered) -> Iterator[Source]:
    """A source whose topic has bound ``d.t`` to table 7."""
    made = Source(server, {"d.t": 7})
    yield made
    made.following.close()


def test_an_alter_that_shows_the_name_before_a_rename_leaves_the_table_where_it_is(
    server: Altered, source: Source
) -> None:
    """It was taken for renamed back, then for dropped: whatever was published of its id later was refused."""
    source.complete()
    server.name = "d.u"
    server.alter("d.t", "d.u")
    server.alter("d.t", "d.t")
    source.complete()
    found = source.folded.table(7)
    assert found is not None
    assert (found.exists, found.name, found.image) == (True, "d.u", b'{"v":"3"}')
    assert (source.folded.bound("d.t"), source.folded.bound("d.u")) == ({0}, {7})


def test_what_is_stored_decides_which_name_a_table_has(server: Altered, source: Source) -> None:
    """Nobody told of the rename, and nothing is missing from the log: both names are read."""
    source.complete()
    server.name = "d.u"
    server.alter("d.u", "d.u")
    source.complete()
    assert (source.folded.bound("d.t"), source.folded.bound("d.u")) == ({0}, {7})
    found = source.folded.table(7)
    assert found is not None
    assert (found.exists, found.image) == (True, b'{"v":"2"}')


@pytest.mark.parametrize("kind", ["ALTER_TABLE", "INSERT"])
def test_a_write_under_an_old_name_is_one_of_the_table_whose_name_it_was(kind: str) -> None:
    """Its image, which has the old name, is nobody's; its ids stay under the new one."""
    metastore, translator = Metastore(), HiveTranslator(with_images=True)
    metastore.create("s.t", "full")
    old = metastore._object("s.t")
    [txn] = metastore.open_txns(1)
    metastore.allocate("s.t", [txn])
    metastore.rename("s.t", "s.u")
    shown = {"tableObjJson": old, "tableObjBeforeJson": old, "tableObjAfterJson": old}
    metastore.note(kind, "s.t", **shown, writeId=1)
    found = [translator.translate(row) for row in metastore.log][-1]
    assert found is not None
    assert not [each for each in found.changes if isinstance(each, BindName)]
    images = [each for each in found.changes if isinstance(each, TableImage)]
    assert [(each.name, each.change, each.txn, each.write_id) for each in images] == [("s.u", "written", txn, 1)]
    assert (translator.tables, translator.unbound) == ({"s.u": 1}, ["s.u", "s.t"])
    assert [*translator.holders("s.u")] == [1]


def test_a_table_that_was_renamed_twice_at_once_is_read_under_both_names() -> None:
    """The rename that is logged later need not be the one that is stored."""
    metastore, translator = Metastore(), HiveTranslator()
    metastore.create("s.t", "external")
    old = metastore._object("s.t")
    metastore.rename("s.t", "s.u")
    metastore.rename("s.u", "s.v")
    metastore.log[-1]["message"]["tableObjBeforeJson"] = old
    for row in metastore.log:
        translator.translate(row)
    assert (translator.tables, translator.unbound) == ({"s.v": 1}, ["s.u"])
