"""The time that a catalog's markers prove: all that was committed by then is published."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stream.sources.hive.live import fetching, notification_log
from stream.sources.hive.live.notification_log import HiveHistoryLost
from tests.serving.stack import eventually
from tests.sources.hive.test_wrong_answers import Server, Source

NOON_S = 1_700_000_000.0
NOON = 1_700_000_000_000


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Iterator[Source]:
    """A source that has published its catalog, and looks at the log's end whenever it reads."""
    server = Server()
    monkeypatch.setattr(fetching, "Metastore", lambda _: server)
    monkeypatch.setattr(notification_log, "LOOK_S", 0.0)
    made = Source(server, {"d.t": 7})
    made.complete()
    made.stamps.clear()
    made.status.wall_clock = lambda: NOON_S
    yield made
    made.following.close()


def test_the_time_is_of_before_the_look_at_the_logs_end(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed while the metastore answers need not be in the log that was seen."""
    last_event, now = source.server.last_event, [NOON_S]

    def looked() -> int:
        now[0] += 7.0
        return last_event()

    source.status.wall_clock = lambda: now[0]
    monkeypatch.setattr(source.server, "last_event", looked)
    source.following.step()
    assert source.stamps == [(NOON, len(source.published))]


def test_no_time_is_told_before_all_is_published_up_to_the_end_that_was_seen(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long log is read in parts: what its readers miss of it is in none of those that came first."""
    monkeypatch.setattr(notification_log, "EVENTS_MAX", 2)
    events = source.server.events
    monkeypatch.setattr(source.server, "events", lambda after, most: events(after, most)[:most])
    before = len(source.published)
    for txn in range(5, 10):
        source.server.log_transaction("OPEN_TXN", fromTxnId=txn, toTxnId=txn)
    times = iter([NOON_S, NOON_S + 1])
    source.status.wall_clock = lambda: next(times)
    source.following._drain(source.server.last_event())
    assert source.stamps == [(NOON, before + 5)]
    assert (source.status.as_of_ms, source.status.lag_seconds >= 0) == (NOON, True)


def test_a_source_that_never_had_read_everything_is_behind_since_its_start(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lag was unknown for as long as it was behind, which is when somebody must hear of it."""
    now = [50.0]
    source.status.clock = lambda: now[0]
    source.status._caught_up_at = -1.0
    monkeypatch.setattr(notification_log, "EVENTS_MAX", 1)
    events = source.server.events
    monkeypatch.setattr(source.server, "events", lambda after, most: events(after, most)[:most])
    for txn in range(5, 8):
        source.server.log_transaction("OPEN_TXN", fromTxnId=txn, toTxnId=txn)
    source.following._read_events()
    now[0] += 40
    source.following._read_events()
    assert (source.stamps, source.status.lag_seconds) == ([], 40)
    source.following._read_events()
    assert (len(source.stamps), source.status.lag_seconds) == (1, 0)


def test_a_log_that_never_rests_is_stamped_too(source: Source) -> None:
    """Else nobody could prove a time of a busy catalog."""
    for txn in range(5, 8):
        source.server.log_transaction("OPEN_TXN", fromTxnId=txn, toTxnId=txn)
        source.following.step()
    assert [at for at, _ in source.stamps] == [NOON] * 3


@pytest.mark.parametrize("is_shorter", [False, True])
def test_a_log_that_has_lost_its_end_is_stamped_by_nobody(
    source: Source, monkeypatch: pytest.MonkeyPatch, is_shorter: bool
) -> None:
    """It was restored, or what follows was deleted: nothing says what is committed."""
    end = source.server.last_event()
    monkeypatch.setattr(source.server, "last_event", lambda: end - 1 if is_shorter else end + 1)
    with pytest.raises(HiveHistoryLost):
        eventually(lambda: source.following.step() and False)
    assert not source.stamps


def test_a_log_that_gives_its_last_event_a_moment_later_is_not_lost(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls may reach two metastores or nodes of a database. A new epoch would make everything void."""
    monkeypatch.setattr(notification_log, "LOOK_S", 60.0)
    events, empty = source.server.events, [True, True, False]
    monkeypatch.setattr(source.server, "events", lambda *asked: [] if empty.pop(0) else events(*asked))
    source.server.log_transaction("OPEN_TXN", fromTxnId=5, toTxnId=5)
    source.following._drain(source.server.last_event())
    assert source.published[-1].position == f"HiveEvent/{source.server.last_event()}"
