"""Events of which a metastore cannot give as many as are asked for, since they are large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stream.sources.hive.live import fetching, notification_log
from stream.sources.hive.rpc.connection import MetastoreError, MetastoreTimeout, MetastoreUnreachable
from stream.sources.hive.structs import ThriftError
from tests.sources.hive.test_wrong_answers import Server, Source

ASKED = 64


class Large(Server):
    """A metastore that gives at most ``most`` events; asked for more, it fails."""

    def __init__(self) -> None:
        super().__init__()
        self.most = ASKED
        self.failure: Exception = ThriftError("the answer is larger than 536870912 bytes")
        self.asked: list[int] = []

    def events(self, after: int, count: int) -> list[dict[str, Any]]:
        """What follows."""
        self.asked.append(count)
        if count > self.most:
            raise self.failure
        return super().events(after, count)[:count]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Large:
    """Its log is long, and nobody looks at its end."""
    made = Large()
    monkeypatch.setattr(fetching, "Metastore", lambda _: made)
    monkeypatch.setattr(notification_log, "EVENTS_MAX", ASKED)
    monkeypatch.setattr(notification_log, "LOOK_S", 3600.0)
    return made


@pytest.fixture
def source(server: Large) -> Iterator[Source]:
    """A source that has published its catalog, and reads of a long log what comes next."""
    made = Source(server, {"d.t": 7})
    made.complete()
    for txn in range(5, 505):
        server.log_transaction("OPEN_TXN", fromTxnId=txn, toTxnId=txn)
    server.asked.clear()
    yield made
    made.following.close()


def read(source: Source, times: int) -> None:
    """As `HiveSource` does: after a failure once more."""
    for _ in range(times):
        try:
            source.following.step()
        except (MetastoreError, ThriftError):
            continue


@pytest.mark.parametrize("failure", [ThriftError("larger than 536870912 bytes"), MetastoreTimeout("not in time")])
def test_events_that_cannot_be_read_together_are_read_in_smaller_parts(
    server: Large, source: Source, failure: Exception
) -> None:
    """The same ones were asked for again, for good. The parts grow by one: a failure may take all of a call's time."""
    server.most, server.failure = 10, failure
    at = source.following._log.at
    read(source, 8)
    of_parts = [each for each in server.asked if each > 1]  # one event is asked for to compare it
    assert of_parts == [64, 32, 16, 8, 9, 10, 11, 5]
    assert source.following._log.at == at + 8 + 9 + 10 + 5


def test_no_failure_asks_for_less_than_one_event(server: Large, source: Source) -> None:
    """It would be given none, and take the log for ended. Once events are small, all are read."""
    server.most = 0
    read(source, 9)
    assert server.asked[-3:] == [1, 1, 1]
    server.most = ASKED
    read(source, 40)
    assert source.following._log.at == server.last_event()


def test_an_outage_makes_no_part_smaller(server: Large, source: Source) -> None:
    """It says nothing about how large the events are."""
    server.most, server.failure = 0, MetastoreUnreachable("no metastore answers")
    read(source, 3)
    assert server.asked == [ASKED] * 3


def test_a_part_that_was_full_is_followed_by_the_next_one_at_once(server: Large, source: Source) -> None:
    """What is fetched meanwhile would be of tables that the rest of the log writes again."""
    server.most = 4
    read(source, 4)
    source.following._progress.touch(["d.t"])
    published = len(source.images())
    read(source, 3)
    assert len(source.images()) == published
