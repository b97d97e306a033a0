"""What a backfill publishes between a source's transactions, and when. Without a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import pytest
from structlog.testing import capture_logs

from stream.kafka.requests import HotKeys, read_hot_keys
from stream.sources.mariadb.backfill.choice import BackfillRequest, Choice, read_request
from stream.sources.mariadb.backfill.plan import After, Chunk, Cursor, Plan
from stream.sources.mariadb.backfill.reading import AHEAD_MAX, TableHeld, Wanted
from stream.sources.mariadb.backfill.rereading import Rereading
from stream.sources.mariadb.backfill.run import BEHIND_EVERY_S, HELD_S, IDLE_S, Backfill, BackfillOptions
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.cascades.children import Knowledge
from stream.sources.mariadb.cascades.family import Family
from stream.sources.mariadb.connection import MariaDBError
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.schema import TableFilter, missing_table
from stream.sources.status import SourceStatus
from stream.wire.events import BackfillTable, ResumePoint, SourceTransaction, VoidTable
from stream.wire.keys import row_key
from tests.sources.mariadb.test_backfill_plan import DESCRIBED, TABLE, at, chunk, row, transaction


@dataclass
class Binlog:
    """How far the source has read, and whether the server has sent more."""

    reached: bool
    has_more: bool = False

    def has_reached(self, _: GtidPosition) -> bool:
        """As the test says."""
        return self.reached


REACHED, BEFORE = Binlog(True), Binlog(False)


class Again:
    """A reading of single rows, whose chunk the test gives."""

    def __init__(self) -> None:
        self.first: Chunk | None = None
        self.failed: MariaDBError | None = None
        self.keys: tuple[bytes, ...] = ()

    def want(self, wanted: Wanted | None) -> None:
        """The keys that are wanted."""
        self.keys = wanted.keys if wanted else ()

    def close(self) -> None:
        """Nothing is open."""


class Watched:
    """A backfill whose chunks a test gives, with a clock of its own."""

    def __init__(self, *tables: str, **options: float) -> None:
        self.now = 100.0
        self.takes_s = 0.0
        self.annotated: list[dict[str, str]] = []
        self.said: list[SourceTransaction] = []
        self.first: Chunk | None = None
        self.failed: MariaDBError | None = None
        self.wanted: list[str] = []
        self.estimate = 0
        self.waits = 0
        self.room = 1_000
        """How many transactions the publisher takes before it has no room."""
        catalog = Catalog()
        catalog.describe_as({name: replace(DESCRIBED, table=name) for name in tables})
        point = ResumePoint("s", 1, 1, at(1), 1, at(1))
        self.status = SourceStatus(clock=lambda: self.now)
        chosen = BackfillOptions(TableFilter(), **options)  # type: ignore[arg-type]
        self.again = Again()
        self.run = Backfill(
            chosen,
            self,
            self,
            catalog,
            point,
            self.status,
            clock=lambda: self.now,
            rereading=Rereading(self.again, catalog),
        )

    def want(self, wanted: Wanted | None) -> None:
        """Whose chunks are wanted."""
        self.failed = None
        self.wanted += [wanted.described.table] if wanted else []

    def wait(self, seconds: float) -> bool:
        """The chunk is there at once; else the time passes."""
        self.waits += 1
        self.now += 0 if self.first else seconds
        return self.first is not None

    def take(self) -> None:
        """The test gives the same chunk again."""

    def close(self) -> None:
        """Nothing is open."""

    def publish(self, txn: SourceTransaction) -> None:
        """Kept; a chunk takes its time."""
        self.said.append(txn)
        self.room -= 1
        if not isinstance(txn.changes[0], BackfillTable):
            self.now += self.takes_s

    def has_room(self, wait_s: float = 0.0, /) -> bool:
        """As the test says; else the time passes."""
        if self.room > 0:
            return True
        self.now += wait_s
        return False

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """Kept."""
        self.annotated.append(dict(annotations))

    def point(self, annotations: dict[str, str]) -> ResumePoint:
        """From where a source goes on that finds these words."""
        return ResumePoint("s", 1, 1, at(1), 1, at(1), annotations=annotations, descriptions={TABLE: DESCRIBED})

    def begins_after(self) -> float:
        """Seconds until the table is begun again."""
        before, count = self.now, len(self.said)
        while len(self.said) == count:
            self.run.step(at(9), 1, BEFORE)
            self.now += 0.0625
        return self.now - 0.0625 - before


def test_a_table_that_is_voided_again_and_again_waits_longer_each_time() -> None:
    """Else a table with cascades would be read and published for ever; one that was left alone does not wait long."""
    watched = Watched(TABLE)
    assert watched.begins_after() == 0
    waited = []
    for _ in range(5):
        watched.run.notice(transaction(VoidTable(TABLE, "cascade")))
        waited.append(watched.begins_after())
    assert waited == [0.125, 0.25, 0.5, 1.0, 2.0]
    watched.now += 1_000
    watched.run.notice(transaction(VoidTable(TABLE, "DDL")))
    assert watched.begins_after() == 0.125


@pytest.mark.parametrize(
    ("rows", "pauses"), [(1, [0.125] * 4), (50, [0.125, 0.25, 0.5, 0.5]), (400, [0.125, 0.25, 0.5, 1.0])]
)
def test_a_small_table_waits_no_longer_than_its_rows_cost(rows: int, pauses: list[float]) -> None:
    """A table that cascades void again and again is whole most of the time if publishing it again costs little."""
    watched = Watched(TABLE)
    whole = chunk(*map(row, range(1, rows + 1)), last=None)
    waited = []
    watched.first = whole
    watched.run.step(at(9), 1, REACHED)
    for _ in pauses:
        watched.first = None
        watched.run.notice(transaction(VoidTable(TABLE, "cascade")))
        waited.append(watched.begins_after())
        watched.first = whole
        watched.run.step(at(9), 1, REACHED)
    assert waited == pauses


def test_a_table_that_was_small_waits_for_what_it_has_grown_to() -> None:
    """It may never be complete again: each attempt would publish many rows, and no pause would grow."""
    watched = Watched(TABLE)
    watched.first = chunk(row(1), last=None)
    watched.run.step(at(9), 1, REACHED)
    waited = []
    for _ in range(3):
        watched.first = None
        watched.run.notice(transaction(VoidTable(TABLE, "cascade")))
        waited.append(watched.begins_after())
        watched.first = chunk(*map(row, range(1, 401)), last=After([400]))
        watched.run.step(at(9), 1, REACHED)
    assert waited == [0.125, 0.25, 0.5]


def test_a_step_is_bounded_while_chunks_keep_coming() -> None:
    """The source must look at its server and be stoppable between steps, however fast chunks are read."""
    watched = Watched(TABLE)
    watched.first = chunk(row(1), last=After([1]))
    watched.run.step(at(9), 1, REACHED)
    begins, *chunks = watched.said
    assert list(begins.changes) == [BackfillTable(TABLE, complete=False)]
    assert len(chunks) == AHEAD_MAX


def test_a_table_that_is_gone_is_complete_at_once_and_said_once() -> None:
    """It has no rows to read. One whose schema is not known yet may still be there."""
    watched = Watched("d.a", "d.b", TABLE)
    unknown = replace(missing_table("d.b"), reason="its schema at this position is not known")
    watched.run._catalog.describe_as({"d.a": missing_table("d.a"), "d.b": unknown, TABLE: DESCRIBED})
    watched.run.step(at(9), 1, BEFORE)
    said = [each for transaction in watched.said for each in transaction.changes]
    assert said[:2] == [BackfillTable("d.a", complete=False), BackfillTable("d.a", complete=True)]
    assert watched.wanted == [TABLE]
    watched.run.step(at(9), 1, BEFORE)
    told = [each.table for txn in watched.said for each in txn.changes if isinstance(each, BackfillTable)]
    assert told.count("d.a") == 2
    assert "d.b" not in told


def test_a_table_that_cannot_be_read_leaves_its_turn_to_the_next() -> None:
    """It is tried again after a pause that grows with each failure, though an attempt itself may take 20 s."""
    watched = Watched("s.a", "s.b")
    tried_at = []
    for _ in range(4):
        while watched.wanted[-1:] != ["s.a"]:
            watched.run.step(at(9), 1, BEFORE)
            watched.now += 0.25
        tried_at.append(watched.now)
        watched.now += 20
        watched.failed = MariaDBError("denied")
        watched.run.step(at(9), 1, BEFORE)
        watched.run.step(at(9), 1, BEFORE)
        assert watched.wanted[-1] == "s.b"
        watched.failed = MariaDBError("denied, too")
        watched.run.step(at(9), 1, BEFORE)
    pauses = [round(later - before - 20) for before, later in pairwise(tried_at)]
    assert pauses == [5, 10, 20]
    assert [list(each.changes) for each in watched.said] == [
        [BackfillTable("s.a", complete=False)],
        [BackfillTable("s.b", complete=False)],
    ]


def test_a_table_that_somebody_holds_up_lets_others_go_on_and_is_looked_at_soon() -> None:
    """However long it lasts, since nothing else of it says that it is over. It is said once who that is."""
    watched, held = Watched("s.a", "s.b"), "the prepared transaction 'x' writes into it"
    watched.run.step(at(9), 1, BEFORE)
    with capture_logs() as logs:
        for times in range(1, 4):
            assert watched.wanted.count("s.a") == times
            watched.failed = TableHeld(held)
            watched.run.step(at(9), 1, BEFORE)
            assert watched.status.tables_held == {"s.a": held}
            if times == 1:
                watched.run.step(at(9), 1, BEFORE)
                assert watched.wanted[-1] == "s.b"
                watched.failed = MariaDBError("denied")
                watched.run.step(at(9), 1, BEFORE)
            watched.now += HELD_S
            watched.run.step(at(9), 1, BEFORE)
    assert [each["table"] for each in logs if each["log_level"] == "warning"] == ["s.a"]
    watched.first = replace(chunk(row(1, "s.a")), described=replace(DESCRIBED, table="s.a"))
    watched.run.step(at(9), 1, REACHED)
    assert not watched.status.tables_held


def test_many_held_tables_leave_their_turn_to_the_one_that_is_free() -> None:
    """However long a look at each takes: by then the first of them may be looked at again."""
    held = [f"s.h{number:02}" for number in range(20)]
    watched = Watched(*held, "s.z")
    for _ in range(2 * len(held)):
        watched.run.step(at(9), 1, BEFORE)
        if watched.wanted[-1] == "s.z":
            break
        watched.failed = TableHeld("the prepared transaction 'x' writes into it")
        watched.run.step(at(9), 1, BEFORE)
        watched.now += HELD_S / 4
    assert watched.wanted[-1] == "s.z"
    watched.failed = MariaDBError("denied")
    watched.run.step(at(9), 1, BEFORE)
    for _ in range(2 * len(held)):
        watched.now += HELD_S
        watched.run.step(at(9), 1, BEFORE)
        watched.failed = TableHeld("the prepared transaction 'x' writes into it")
        watched.run.step(at(9), 1, BEFORE)
    assert {*watched.wanted[-len(held) - 2 :]} == {*held, "s.z"}, "each has its turn"


def test_a_void_ends_what_is_said_of_the_table_that_is_read() -> None:
    """Metrics and the command must not show a table as being read that waits, or is gone."""
    watched = Watched(TABLE)
    watched.first = chunk(row(1), last=After([1]))
    watched.run.step(at(9), 1, REACHED)
    assert (watched.status.backfill.table, watched.status.backfill.rows) == (TABLE, AHEAD_MAX)
    watched.run.notice(transaction(VoidTable(TABLE, "DDL")))
    assert watched.status.backfill.table == ""
    said = {name for name, text in watched.annotated[-1].items() if text}
    assert {"backfills", "backfill_progress"}.isdisjoint(said)


def read_for_its_foreign_keys(family: Family) -> Watched:
    """A table that is whole, while it is read for those alone: nothing of it is published."""
    watched = Watched(TABLE)
    watched.run._family = family
    watched.run._plan.complete.add(TABLE)
    family.children.follow({TABLE: (("id",),)})
    watched.first = chunk(row(1), last=After([1]))
    watched.run.step(at(9), 1, REACHED)
    assert watched.said == []
    return watched


def assert_published_whole(watched: Watched) -> None:
    """With the next chunk, which is its last, the table is read for those who want its rows."""
    watched.first = chunk(row(1))
    watched.run.step(at(9), 1, REACHED)
    changes = [change for each in watched.said for change in each.changes]
    assert changes == [BackfillTable(TABLE, complete=False), row(1), BackfillTable(TABLE, complete=True)]


def test_a_table_that_is_voided_while_it_is_read_for_its_foreign_keys_is_published_when_it_is_read_next() -> None:
    """Its backfill is no learning: else it had to be read twice, and one that never ends would begin anew each time."""
    family = Family()
    watched = read_for_its_foreign_keys(family)
    watched.run.notice(transaction(VoidTable(TABLE, "cascade")))
    watched.now += 1
    assert_published_whole(watched)
    assert family.children.knowledge(TABLE) is Knowledge.ALL


class Asking:
    """Requests that a test makes."""

    def __init__(self, *values: bytes) -> None:
        self.left = list(enumerate(values, 1))

    def new(self, offset: int) -> list[tuple[int, bytes]]:
        """Those that are left."""
        found, self.left = [each for each in self.left if each[0] > offset], []
        return found

    def close(self) -> None:
        """Nothing is open."""


def test_a_request_is_done_and_remembered_in_one_batch() -> None:
    """A complete table that is named begins again before the request counts as read: no kill in between loses it."""
    watched = Watched(TABLE)
    watched.run.step(at(9), 1, BEFORE)
    watched.first = chunk(row(1))
    watched.run.step(at(9), 1, REACHED)
    assert list(watched.said[-1].changes) == [BackfillTable(TABLE, complete=True)]
    watched.run._requests = Asking(b'{"start": true, "table": "s.t"}', b"garbage")
    watched.annotated.clear()
    watched.run.step(at(9), 1, BEFORE)
    assert list(watched.said[-1].changes) == [BackfillTable(TABLE, complete=False)]
    assert Choice.told(watched.annotated[0]).offset == 2
    assert Plan.resume(watched.point(watched.annotated[0])).cursors == {TABLE: Cursor()}


def test_a_cancelled_table_is_put_aside_and_goes_on_when_it_is_started() -> None:
    """Its cursor is kept meanwhile, and voids still end it."""
    watched = Watched(TABLE)
    watched.first = chunk(row(1), last=After([1]))
    watched.run._requests = Asking()
    watched.run.step(at(9), 1, REACHED)
    said = len(watched.said)
    for value in (b'{"start": false}', b'{"start": true, "table": "s.t"}'):
        watched.run._requests = Asking(*[b""] * len(watched.annotated), value)
        watched.now += 1
        watched.run.step(at(9), 1, REACHED)
        if b"false" in value:
            assert len(watched.said) == said
            watched.run.step(at(9), 1, REACHED)
            assert len(watched.said) == said
    assert len(watched.said) > said
    assert [each for each in watched.said if list(each.changes) == [BackfillTable(TABLE, complete=False)]] == [
        watched.said[0]
    ]


def test_chunks_wait_while_the_source_is_behind() -> None:
    """Other changes come first; the state says why nothing is published."""
    watched = Watched(TABLE, lag_max_s=2.0)
    watched.first = chunk(row(1), last=After([1]))
    watched.status.caught_up(1)
    watched.now += 3
    watched.run.step(at(9), 1, REACHED)
    assert len(watched.said) == 1
    assert "3.0 s behind" in watched.status.backfill.paused
    assert "behind" in watched.annotated[-1]["backfill_progress"]
    watched.status.caught_up(1)
    watched.run.step(at(9), 1, REACHED)
    assert len(watched.said) == 1 + AHEAD_MAX
    assert not watched.status.backfill.paused


def test_chunks_wait_while_a_source_that_began_behind_is_behind() -> None:
    """It has passed no clock on since its start. One whose server is a replica never does, and does not wait."""
    watched = Watched(TABLE, lag_max_s=2.0)
    watched.first = chunk(row(1), last=After([1]))
    watched.run.step(at(9), 1, REACHED)
    said = len(watched.said)
    watched.status.is_behind()
    watched.now += 3
    watched.run.step(at(9), 1, REACHED)
    assert len(watched.said) == said
    watched.status.caught_up(1)
    watched.run.step(at(9), 1, REACHED)
    assert len(watched.said) > said


def test_chunks_take_no_more_than_their_share_of_the_time() -> None:
    """After a second of publishing, three seconds belong to other work, if the share is a quarter."""
    watched = Watched(TABLE, share=0.25)
    watched.first = chunk(row(1), last=After([1]))
    watched.takes_s = 1 / AHEAD_MAX
    watched.run.step(at(9), 1, REACHED)
    said, ended = len(watched.said), watched.now
    while len(watched.said) == said:
        watched.now += 0.125
        watched.run.step(at(9), 1, REACHED)
    assert watched.now - ended - 1 == 3.0


def test_changes_of_the_server_come_before_rows_of_a_backfill() -> None:
    """While the server has more to say a chunk is published now and then only, so that nobody else waits for it."""
    watched, busy = Watched(TABLE), Binlog(True, has_more=True)
    watched.first = chunk(row(1), last=After([1]))
    for _ in range(40):
        watched.run.step(at(9), 1, busy)
        watched.now += BEHIND_EVERY_S / 10
    assert len(watched.said) == 1 + 4
    watched.run.step(at(9), 1, REACHED)
    assert len(watched.said) == 1 + 4 + AHEAD_MAX


def test_chunks_follow_each_other_while_the_server_is_silent() -> None:
    """Else an idle server's rows would come by the rhythm of its heartbeats; it is looked after in between."""
    watched = Watched(TABLE)
    watched.first, watched.takes_s = chunk(row(1), last=After([1])), 0.01
    watched.run.step(at(9), 1, BEFORE)
    began = watched.now
    watched.run.step_while_idle(at(9), 1, REACHED)
    assert IDLE_S <= watched.now - began < IDLE_S + 0.05
    assert len(watched.said) > 2 * AHEAD_MAX
    said = len(watched.said)
    watched.run.step_while_idle(at(9), 1, Binlog(True, has_more=True))
    assert len(watched.said) == said


def test_chunks_wait_for_a_batch_that_is_full_already() -> None:
    """The next change would be committed behind all of them. They do not wait for ever: others may fill each batch."""
    watched = Watched(TABLE)
    watched.first = chunk(row(1), last=After([1]))
    watched.room = 1 + 2
    watched.run.step(at(9), 1, REACHED)
    assert len(watched.said) == 1 + 2
    began = watched.now
    while len(watched.said) == 1 + 2:
        watched.run.step(at(9), 1, REACHED)
        watched.now += BEHIND_EVERY_S / 10
    assert BEHIND_EVERY_S <= watched.now - began <= 1.2 * BEHIND_EVERY_S


def test_an_idle_server_waits_for_room_and_goes_on() -> None:
    """Not for its next heartbeat: a batch is committed in less time."""
    watched = Watched(TABLE)
    watched.first = chunk(row(1), last=After([1]))
    watched.room = 1
    watched.run.step(at(9), 1, BEFORE)
    watched.takes_s = 0.01
    watched.run._give_way_until = watched.now + 1
    began = watched.now
    committed = watched.has_room

    def commits(wait_s: float = 0.0, /) -> bool:
        watched.room = 1 if watched.now - began >= IDLE_S / 2 else watched.room
        return committed(wait_s)

    watched.has_room = commits  # type: ignore[method-assign]
    watched.run.step_while_idle(at(9), 1, REACHED)
    assert len(watched.said) > 1


def test_an_idle_step_ends_without_chunks_to_publish() -> None:
    """Whether none is read, or none may be published: it does not spin."""
    watched = Watched(TABLE, lag_max_s=2.0)
    watched.run.step_while_idle(at(9), 1, REACHED)
    assert watched.waits == 0
    watched.first = chunk(row(1), last=After([1]))
    watched.status.caught_up(1)
    watched.now += 3
    watched.run.step_while_idle(at(9), 1, REACHED)
    assert (watched.waits, len(watched.said)) == (0, 1)


def hot(*keys: str, table: str = TABLE) -> bytes:
    """What an owner asks for."""
    return msgspec.json.encode(HotKeys(table, list(keys)))


def test_hot_rows_are_published_before_the_others() -> None:
    """Those that an owner asks for, of a table that is about to be read; what is no key of it is left out."""
    watched = Watched(TABLE)
    watched.run._requests = Asking(hot("[2]", "[1]", "[1,2]", "[null]", "nonsense", ""), hot("[1]", table="s.other"))
    watched.run.step(at(9), 1, BEFORE)
    assert watched.again.keys == (row_key(TABLE, [2]), row_key(TABLE, [1]))
    watched.again.first = chunk(row(2), row(1), last=None)
    watched.run.step(at(9), 1, REACHED)
    assert list(watched.said[-1].changes) == [row(2), row(1)]


def test_hot_rows_of_a_whole_table_are_not_read() -> None:
    """They are known. So it is of a table that nobody wants whole, and an older source does not take them for another
    request."""
    watched = Watched(TABLE)
    watched.first = chunk(row(1), last=None)
    watched.run.step(at(9), 1, REACHED)
    watched.run._requests = Asking(hot("[1]"))
    watched.run.step(at(9), 1, REACHED)
    assert not watched.again.keys
    assert read_request(hot("[1]")) is None
    assert read_hot_keys(msgspec.json.encode(BackfillRequest(start=True, table=TABLE))) is None


def test_a_table_that_was_read_for_its_foreign_keys_is_published_in_a_new_epoch() -> None:
    """All of it is void there: read as before, it would never be cached, and nobody would see why."""
    watched = read_for_its_foreign_keys(Family())
    watched.run.begin_epoch(ResumePoint("s", 2, 1, at(9), 1, at(9)))
    assert_published_whole(watched)
