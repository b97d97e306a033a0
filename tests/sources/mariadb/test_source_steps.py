"""What a source does between two transactions, and once it is lost, refused or ended. Without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from stream.publish.publisher import PublisherLost
from stream.sources.mariadb import live_schema, source
from stream.sources.mariadb.backfill.run import BackfillOptions
from stream.sources.mariadb.binlog.progress import UNREPEATABLE, Progress
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBUnreachable, ServerSettingsError
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.position import ServerPosition
from stream.sources.mariadb.schema import TableFilter
from stream.wire.events import EVERY_TABLE, ResumePoint, RowChange, SourceTransaction, VoidTable
from tests.sources.mariadb.test_backfill_plan import at, row

NOWHERE = ConnectionSettings(port=1)


class Steps:
    """A source that reads what it is given, with a backfill. ``told``: what was done, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, given: Sequence[SourceTransaction | None]) -> None:
        self.told: list[str] = []
        self.flushes: Callable[[], None] = lambda: self.told.append("flushed")
        self.is_check_due = False
        self.publisher: Any = SimpleNamespace(
            publish=lambda _: self.told.append("published"),
            annotate=lambda _: None,
            stamp=lambda _: None,
            flush=self.flush,
        )
        self.source = source.MariaDBSource(source.SourceOptions(NOWHERE, "s/0"), lambda: self.publisher)
        self.source._choice = 7
        backfill: Any = SimpleNamespace(
            reconnect=lambda: None,
            notice=lambda _: None,
            step=lambda *_: self.told.append("stepped"),
            step_while_idle=lambda *_: self.told.append("stepped while idle"),
            begin_epoch=lambda _: self.told.append("backfill begun"),
        )
        self.source._backfill = self.backfill = backfill
        self.reader = SimpleNamespace(
            transactions=lambda: iter(given), last_heartbeat=None, has_reached=lambda _: True, stop=lambda: None
        )
        self.watch = SimpleNamespace(
            clock_seen=None,
            event_received=lambda: None,
            is_check_due=lambda: self.is_check_due,
            check=lambda *_: self.told.append("checked"),
            close=lambda: None,
        )
        monkeypatch.setattr(self.source, "_open_log", lambda *_: (self.reader, self.watch))
        for name in ("_check", "_describe", "_warn_of"):
            monkeypatch.setattr(self.source, name, lambda *_: None)

    def flush(self) -> None:
        """As the test says."""
        self.flushes()

    def read(self, point: ResumePoint) -> list[str]:
        """What is done for all that is given."""
        schema: Any = SimpleNamespace(load=lambda: None, catalog=SimpleNamespace(is_settled=True))
        self.source._read(self.publisher, schema, Progress(point))
        return self.told


def transaction(number: int, *changes: RowChange) -> SourceTransaction:
    """One of the log."""
    return SourceTransaction(at(number), at(number), 1, [*changes])


def test_nothing_of_a_backfill_comes_into_a_transaction_that_is_partly_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its events are skipped by number, and what is between them would be counted among them. Behind it all goes on."""
    given = [None, transaction(6, row(1), row(2)), None, transaction(7, row(3))]
    partly = ResumePoint("s/0", 1, 9, at(5), 1, at(5), partial_gtid=at(6), partial_events=1, table_choice=7)
    behind = ["published", "stepped", "stepped while idle", "published", "stepped"]
    assert Steps(monkeypatch, given).read(partly) == behind
    whole = ResumePoint("s/0", 1, 9, at(5), 1, at(5), table_choice=7)
    assert Steps(monkeypatch, given).read(whole) == ["stepped while idle", *behind]


def test_what_is_void_before_a_transaction_that_is_partly_published_is_not_said_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It came before it in the topic, and no other one may come into its middle: the publisher would be lost for ever.

    Where nothing is partly published, it may not be in the topic yet.
    """
    lost = SourceTransaction(at(5), at(5), 1, [VoidTable(EVERY_TABLE, "events were lost")])
    given = [lost, transaction(6, row(1), row(2))]
    partly = ResumePoint("s/0", 1, 9, at(5), 1, at(5), partial_gtid=at(6), partial_events=1, table_choice=7)
    assert Steps(monkeypatch, given).read(partly) == ["published", "stepped"]
    whole = ResumePoint("s/0", 1, 9, at(5), 1, at(5), table_choice=7)
    assert Steps(monkeypatch, given).read(whole) == ["published", "stepped"] * 2


def test_a_state_with_a_part_of_a_transaction_says_whether_it_can_be_continued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So it is said first: a source may be lost once a part is out."""
    voids = SourceTransaction(at(6), at(6), 1, [row(1), VoidTable("d.a", "its rows are lost")])
    steps = Steps(monkeypatch, [voids, transaction(7, row(1), row(2))])
    steps.publisher.annotate = lambda words: steps.told.append(words[UNREPEATABLE])
    steps.read(ResumePoint("s/0", 1, 9, at(5), 1, at(5), table_choice=7))
    assert steps.told == [at(6), "published", "stepped", "published", "stepped"]


def test_a_publisher_that_is_lost_while_nothing_is_written_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else would ask it: its markers would stand still until the next change."""
    steps = Steps(monkeypatch, [None])
    steps.is_check_due = True

    def lost() -> None:
        raise PublisherLost("it is gone")

    steps.flushes = lost
    with pytest.raises(PublisherLost):
        steps.read(ResumePoint("s/0", 1, 9, at(5), 1, at(5)))


def test_a_new_connection_to_the_log_is_told_to_the_backfill_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lead to another server: what was read ahead of the old one must not be published as of the new one."""
    steps = Steps(monkeypatch, [None])
    steps.backfill.reconnect = lambda: steps.told.append("reconnected")
    point = ResumePoint("s/0", 1, 9, at(5), 1, at(5))
    assert steps.read(point) == ["reconnected", "stepped while idle"]


@pytest.mark.parametrize("is_lost", [False, True])
def test_whatever_ends_the_reading_ends_its_connections(monkeypatch: pytest.MonkeyPatch, is_lost: bool) -> None:
    """That to the log, and the one beside it: each outage would leave a session at the server, until it takes none."""
    steps = Steps(monkeypatch, [None])
    steps.reader.stop = lambda: steps.told.append("log left")
    steps.watch.close = lambda: steps.told.append("watch closed")

    def lost() -> None:
        raise PublisherLost("it is gone")

    steps.is_check_due, steps.flushes = is_lost, lost
    with pytest.raises(PublisherLost) if is_lost else nullcontext():
        steps.read(ResumePoint("s/0", 1, 9, at(5), 1, at(5)))
    assert steps.told[-2:] == ["log left", "watch closed"]
    assert steps.source._reader is None


def test_a_clock_is_passed_on_once() -> None:
    """A watch that still has one takes no other from whoever tells it the server's."""
    stamps: list[int] = []
    publisher: Any = SimpleNamespace(stamp=stamps.append)
    watch: Any = SimpleNamespace(clock_seen=SimpleNamespace(position=at(5), now_ms=5))
    reader: Any = SimpleNamespace(has_reached=lambda _: True)
    mine = source.MariaDBSource(source.SourceOptions(NOWHERE, "s/0"), lambda: publisher)
    for _ in range(2):
        mine._stamp(publisher, reader, watch)
    assert (stamps, watch.clock_seen) == ([5], None)


def test_a_new_epoch_begins_the_backfill_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had published is void."""
    steps = Steps(monkeypatch, [])
    point = ResumePoint("s/0", 2, 1, at(9), 1, at(9))
    steps.publisher.start_new_epoch = lambda *_: point
    progress = Progress(ResumePoint("s/0", 1, 9, at(5), 1, at(5)))
    steps.source._new_epoch(steps.publisher, progress, ServerPosition(at(9), 1), "history_lost")
    assert (steps.told, progress.epoch) == (["backfill begun"], 2)


def test_a_server_that_is_refused_is_not_read_although_an_epoch_has_begun_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The epoch voids what can't be proved any more; what follows could not be, either."""
    publisher: Any = SimpleNamespace(annotate=lambda _: None)
    begun: list[str] = []
    mine = source.MariaDBSource(source.SourceOptions(NOWHERE, "s/0"), lambda: publisher)
    mine._new_epoch_for = "history_lost"

    def refuse(_: Any) -> None:
        raise ServerSettingsError("sync_binlog is 0")

    monkeypatch.setattr(source, "connect", lambda _: SimpleNamespace(_force_close=lambda: None))
    monkeypatch.setattr(source, "check_server", refuse)
    monkeypatch.setattr(source, "own_histories", lambda _: set())
    monkeypatch.setattr(mine, "_begin", lambda _: ServerPosition(at(9), 1))
    monkeypatch.setattr(mine, "_new_epoch", lambda *given: begun.append(given[-1]))
    schema: Any = SimpleNamespace(catalog=SimpleNamespace(describe_as=lambda _: None))
    with pytest.raises(ServerSettingsError):
        mine._check(publisher, schema, Progress(ResumePoint("s/0", 1, 9, at(5), 1, at(5))))
    assert begun == ["history_lost"]


def test_a_source_that_ends_ends_its_backfill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each publisher that is lost would leave a thread and a session behind."""
    told: list[str] = []
    publisher: Any = SimpleNamespace(annotate=lambda _: None)
    options = source.SourceOptions(NOWHERE, "s/0", backfill=BackfillOptions())
    mine = source.MariaDBSource(options, lambda: publisher)
    catalog = SimpleNamespace(describe_as=lambda _: None)
    schema = SimpleNamespace(catalog=catalog, hold_again=lambda _: None, close=lambda: told.append("schema"))

    def lost(*_: Any) -> None:
        raise PublisherLost("it is gone")

    monkeypatch.setattr(mine, "_new_schema", lambda: schema)
    monkeypatch.setattr(source, "Backfill", lambda *_, **__: SimpleNamespace(close=lambda: told.append("backfill")))
    monkeypatch.setattr(mine, "_read", lost)
    with pytest.raises(PublisherLost):
        mine._follow(publisher, ResumePoint("s/0", 1, 9, at(5), 1, at(5)))
    assert told == ["schema", "backfill"]


def test_a_question_about_tables_is_asked_once_more_with_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one may have been idle for hours: a server ends it, and goes on."""
    told: list[int] = []
    numbers = iter((1, 2))

    def connect(_: ConnectionSettings) -> Any:
        number = next(numbers)
        return SimpleNamespace(number=number, _force_close=lambda: told.append(-number))

    def ask(session: Any) -> str:
        told.append(session.number)
        if session.number == 1:
            raise MariaDBUnreachable("gone away")
        return "answered"

    monkeypatch.setattr(live_schema, "connect", connect)
    assert LiveSchema(NOWHERE, TableFilter())._retried(ask) == "answered"
    assert told == [1, -1, 2]


def test_a_source_that_is_stopped_ends_the_look_at_what_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the last transaction again, which may be a large one; what follows would be done without a verdict."""
    steps = Steps(monkeypatch, [])
    is_stopped: list[bool] = []

    def check_same(*_: object, opened: Callable[[Any], object]) -> None:
        opened(SimpleNamespace(stop=lambda: is_stopped.append(True)))
        steps.source.stop()

    monkeypatch.setattr(source, "check_same", check_same)
    monkeypatch.setattr(source, "check_resumable", lambda *_: None)
    point = ResumePoint("s/0", 1, 9, at(5), 1, at(5), cursor=at(4), checksum=3)
    connection: Any = None
    monkeypatch.setattr(steps.source, "_check", lambda *_: steps.source._check_last(connection, Progress(point)))
    monkeypatch.setattr(steps.source, "_describe", lambda *_: steps.told.append("described"))
    monkeypatch.setattr(steps.source, "_open_log", lambda *_: pytest.fail("it is stopped"))
    assert (steps.read(point), is_stopped) == ([], [True])
    check_same(opened=steps.source._reads)
    assert len(is_stopped) == 3, "at once, and by the next stop"
