"""What a Hive source publishes of a table that it has fetched, in which order, and when."""

from __future__ import annotations

from typing import Any, cast

import pytest

from consumers.fold.catalog_state import decode_table, name_key, table_key
from stream.sources.hive.live.details import Details
from stream.sources.hive.live.fetching import Fetched
from stream.sources.hive.live.images import Images
from stream.sources.hive.live.metastore import Metastore, ServerList, Transactions
from stream.sources.hive.live.partitions import Partitions
from stream.sources.hive.messages import HiveMessageError, TableObject
from stream.sources.hive.progress import Progress
from stream.sources.hive.recent_ids import RecentWriteIds
from stream.sources.hive.refusals import RETRY_MAX_S
from stream.sources.hive.translator import HiveTranslator
from stream.wire.events import BindName, Change, OpenTransaction, SourceTransaction, TableImage, VoidTable
from tests.lab.workload.folded import Folded


class Publishing:
    """The images of a catalog whose log ends where the source begins."""

    def __init__(self, names: dict[str, int], begin: int = 0) -> None:
        self.published: list[list[Change]] = []
        self.opened: list[OpenTransaction] = []
        """The transactions that were told of."""
        self.progress, nothing = Progress(), cast("Any", None)
        self.images = Images(
            cast("Metastore", nothing),
            HiveTranslator(names=names),
            RecentWriteIds(begin),
            self.progress,
            cast("Partitions", nothing),
            cast("Details", nothing),
            self._publish,
            self._drain,
            clock=lambda: self.now_s,
        )
        self.now_s = 0.0
        self.ending: list[bool] = []
        """Whether each of the transactions that end with event 10, while the next fetch is on its way, commits."""

    def _drain(self, _: int) -> None:
        while self.ending:
            self.images.ended(10, ["s.t"], committed=self.ending.pop())

    def _publish(self, changes: list[Change], opened: tuple[OpenTransaction, ...] = ()) -> None:
        self.opened += opened
        self.published.append(changes)

    def take(
        self,
        name: str,
        table_id: int,
        listed_at: int = 9,
        lo: int = 9,
        error: HiveMessageError | None = None,
        is_materialized: bool = False,
    ) -> None:
        """The table was fetched under this name, at event ``lo``, with a list as of ``listed_at``."""
        image = b'{"tableName":"%s"}' % name.encode()
        table = TableObject(name, table_id, True, True, image, is_materialized=is_materialized)
        none = Transactions(0, frozenset(), frozenset())
        fetched = Fetched((name,), listed_at, lo, lo, {name: ServerList(0, (), ())}, {name: error or table}, none)
        self.images.take(fetched, in_sweep=True)


def test_no_reader_meets_an_image_under_a_name_that_is_not_its_own() -> None:
    """A rename that was not seen: an owner that has folded the first half must not show the old name's image."""
    publishing, folded = Publishing({"s.old": 7}), Folded(1)
    folded.start("HiveEvent/1")
    before = TableImage(7, "s.old", "transactional", "image", image=b'{"tableName":"s.old"}')
    before.lo = before.hi = "HiveEvent/1"
    folded.publish([SourceTransaction("HiveEvent/1", "HiveEvent/1", 0, [BindName("s.old", 7), before])])
    publishing.take("s.new", 7)
    [changes] = publishing.published
    for number, change in enumerate(changes):
        at = f"HiveEvent/{10 + number}"
        folded.publish([SourceTransaction(at, at, 0, [change])])
        [entries] = folded.entries
        state = decode_table(entries[table_key(7)])
        if name_key("s.new") in entries:
            assert state.image == b'{"tableName":"s.new"}'
    assert name_key("s.new") in entries
    assert not folded.dead


def test_a_materialized_view_is_bound_and_listed_and_its_image_is_nobodys() -> None:
    """A REBUILD changes its creation metadata without an event: an image, of an earlier version too, proves nothing."""
    publishing, folded = Publishing({}), Folded(1)
    folded.start("HiveEvent/1")
    before = TableImage(7, "s.v", "transactional", "image", image=b'{"creationMetadata":{}}', write_ids="s.v:0:0::")
    before.lo = before.hi = "HiveEvent/1"
    folded.publish([SourceTransaction("HiveEvent/1", "HiveEvent/1", 0, [before])])
    publishing.take("s.v", 7, is_materialized=True)
    [changes] = publishing.published
    assert [(each.image, each.struct) for each in changes if isinstance(each, TableImage)] == [(None, None)]
    folded.publish([SourceTransaction("HiveEvent/9", "HiveEvent/9", 0, changes)])
    [entries] = folded.entries
    state = decode_table(entries[table_key(7)])
    assert name_key("s.v") in entries
    assert (state.exists, state.ids.known) == (True, True)
    assert "has not arrived" in state.waits_for()
    assert not folded.dead


def test_a_name_is_bound_by_the_fetch_that_is_published() -> None:
    """A list that is too old has its table fetched again; that it is the table's name was not yet said."""
    publishing = Publishing({}, begin=5)
    publishing.take("s.t", 7, listed_at=4)
    assert publishing.published == []
    assert list(publishing.progress.dirty) == ["s.t"]
    publishing.take("s.t", 7)
    [changes] = publishing.published
    assert BindName("s.t", 7, "") in changes


def test_who_holds_ids_of_a_table_is_told_with_its_name() -> None:
    """They were allocated before it was known whose name it is: a restarted source would not know who writes it."""
    publishing = Publishing({}, begin=8)
    translator = publishing.images._translator
    message = {"txnIdList": [5], "writeIdList": [1], "dbName": "s", "tableName": "t"}
    row = {"eventId": 9, "eventTime": 1, "eventType": "ALLOC_WRITE_ID_EVENT", "message": message}
    assert translator.translate(row) is not None
    publishing.images._recent.note(9, translator.write_id_changes)
    publishing.take("s.t", 7, listed_at=8)
    assert [(each.txn, each.write_ids) for each in publishing.opened] == [(5, ((7, 1),))]


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("voided", ["table", "everything"])
def test_a_transaction_that_ends_after_a_fetch_has_its_table_fetched_again(committed: bool, voided: str) -> None:
    """After a void the fold takes no image from before a COMMIT, and after an ABORT it never does."""
    publishing = Publishing({"s.t": 7})
    publishing.progress.sweeping = voided == "everything"
    publishing.images.unsure = {"s.t"} if voided == "table" else set()
    publishing.ending = [committed]
    publishing.take("s.t", 7)
    assert publishing.published == []
    assert list(publishing.progress.dirty) == ["s.t"]
    publishing.take("s.t", 7, lo=10)
    assert len(publishing.published) == 1
    assert not publishing.progress.dirty


@pytest.mark.parametrize("voided_at", [9, 10])
def test_what_was_read_before_a_void_of_everything_is_not_published_after_it(voided_at: int) -> None:
    """The fold would take it for newer than the event that could not be read, which may have changed any table."""
    publishing = Publishing({"s.t": 7})
    publishing.progress.touch(["s.t"])

    def drain(_: int) -> None:
        publishing.images.voided_at = voided_at

    publishing.images._drain = drain
    publishing.take("s.t", 7)
    assert len(publishing.published) == (1 if voided_at == 9 else 0)
    assert list(publishing.progress.dirty) == ([] if voided_at == 9 else ["s.t"])


@pytest.mark.parametrize(("committed", "again"), [(True, 0), (False, 1)])
def test_a_commit_costs_no_fetch_where_the_fold_knows_who_writes(committed: bool, again: int) -> None:
    """Each write would be fetched twice."""
    publishing = Publishing({"s.t": 7})
    publishing.progress.sweeping = False
    publishing.ending = [committed]
    publishing.take("s.t", 7)
    assert len(publishing.progress.dirty) == again


def test_a_table_that_cannot_be_read_is_tried_again_after_a_while() -> None:
    """The metastore may have failed for a moment; the table's next event may be far."""
    publishing = Publishing({"s.t": 7})
    publishing.progress.sweeping = False
    for _ in range(2):
        publishing.take("s.t", 7, error=HiveMessageError("MetaException"))
        publishing.images.try_again()
        assert not publishing.progress.dirty, "not at once"
        assert list(publishing.images.unreadable) == ["s.t"], "a restart tries it"
        publishing.now_s += RETRY_MAX_S
        publishing.images.try_again()
        assert list(publishing.progress.dirty) == ["s.t"]
    assert publishing.published == [[VoidTable("s.t", "it cannot be read: MetaException")]], "once"
    assert publishing.images.unsure == {"s.t"}, "what belongs to it is fetched too"
    publishing.take("s.t", 7)
    assert not publishing.images.unreadable
    assert len(publishing.published) == 2


def test_a_table_of_a_fetch_is_to_be_fetched_until_its_image_is_published() -> None:
    """A source that is killed between two batches goes on where the last one says: the rest would have no image."""
    publishing, left = Publishing({"s.a": 7, "s.b": 8}), list[set[str]]()

    def publish(changes: list[Change], opened: tuple[OpenTransaction, ...] = ()) -> None:  # noqa: ARG001
        left.append({*publishing.progress.dirty})

    publishing.images._publish = publish
    publishing.progress.touch(["s.a", "s.b"])
    names = {"s.a": 7, "s.b": 8}
    tables = {name: TableObject(name, each, True, True, b"{}") for name, each in names.items()}
    lists, none = dict.fromkeys(names, ServerList(0, (), ())), Transactions(0, frozenset(), frozenset())
    publishing.images.take(Fetched((*names,), 9, 9, 9, lists, {**tables}, none), in_sweep=False)
    assert left == [{"s.b"}, set()]
