"""Which server a source with replicas reads, and when it leaves it. The servers are stubs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stream.kafka.connection import KafkaUnreachable
from stream.sources.mariadb import source
from stream.sources.mariadb.binlog.progress import Progress
from stream.sources.mariadb.binlog.table_map import BinlogFormatError
from stream.sources.mariadb.connection import (
    ConnectionSettings,
    MariaDBError,
    MariaDBUnreachable,
    ServerSettingsError,
    SourceHistoryLost,
)
from stream.sources.mariadb.position import ServerPosition
from stream.sources.mariadb.replicas import following, primary
from stream.sources.mariadb.replicas.following import FollowingSource, ServerLeft
from stream.sources.mariadb.replicas.passed_over import MAX_S, PassedOver
from tests.sources.mariadb.server_stubs import (
    FIRST,
    HOST,
    LAST,
    SECOND,
    Reading,
    Schema,
    Servers,
    Stub,
    at,
    followed,
    point,
    watch_of,
)


def test_a_replica_that_was_left_is_tried_after_the_others(servers: Servers) -> None:
    """Its last transaction is another one than the topic's. Nothing that is asked before it is read tells that."""
    servers.by_host["first"].reused = servers.by_host["second"].reused = frozenset({LAST})
    made = Reading(servers, Stub(servers))
    assert made.begun() == ["host"]
    assert [name in each for name, each in zip((FIRST.name, SECOND.name), made.waits, strict=True)] == [True, True]


def test_a_replica_that_was_left_is_read_if_there_is_no_other(servers: Servers) -> None:
    """It may have failed by chance."""
    servers.by_host["host"].is_up = servers.by_host["second"].is_up = False
    made = Reading(servers, Stub(servers))
    made._options = replace(made._options, settings=FIRST)
    made._left("its connection was lost")
    assert made.begun() == ["first"]


def test_if_nothing_can_be_read_the_error_of_the_server_itself_is_told(servers: Servers) -> None:
    """It is the one to mend, whichever was tried last."""
    for each in servers.by_host.values():
        each.refused = "binlog_format"
    made = Reading(servers, Stub(servers))
    made._options = replace(made._options, settings=FIRST)
    made._left("it lags")
    with pytest.raises(ServerSettingsError, match="binlog_format of host"):
        made.run()


def test_who_is_left_again_is_passed_over_for_longer() -> None:
    """Twice as long, up to a limit; and not if it was read for a while."""
    passed = PassedOver()
    passed.add(FIRST, 0.0, 10.0)
    assert (passed.has(FIRST, 9.0), passed.has(FIRST, 11.0), passed.has(SECOND, 9.0)) == (True, False, False)
    assert passed.last((FIRST, SECOND, HOST), 9.0) == [SECOND, HOST, FIRST]
    assert passed.last((FIRST, SECOND, HOST), 11.0) == [FIRST, SECOND, HOST]
    passed.add(FIRST, 12.0, 10.0)
    assert (passed.has(FIRST, 31.0), passed.has(FIRST, 33.0)) == (True, False)
    passed.add(FIRST, 60.0, 10.0)
    assert (passed.has(FIRST, 69.0), passed.has(FIRST, 71.0)) == (True, False)
    now = 60.0
    for _ in range(10):
        passed.add(FIRST, now, 10.0)
        now += 1
    assert (passed.has(FIRST, now + MAX_S - 2), passed.has(FIRST, now + MAX_S + 1)) == (True, False)


@pytest.mark.parametrize("reason", ["asked_for", "history_lost"])
def test_an_epoch_begins_at_the_server_itself(servers: Servers, reason: str) -> None:
    """Whoever noticed the loss may have been cut off before it was told. A replica can't tell it any more."""
    for each in servers.by_host.values():
        each.end = LAST + 2
    made = Reading(servers, Stub(servers), new_epoch=reason == "asked_for")
    made._new_epoch_for = reason
    assert made.begun() == [f"{reason} at {at(LAST + 2)}", "host"]


def test_no_epoch_begins_while_the_server_is_away(servers: Servers) -> None:
    """It is waited for."""
    servers.by_host["host"].is_up = False
    made = Reading(servers, Stub(servers), new_epoch=True)
    made.run()
    assert servers.opened == []
    assert all("host is down" in each for each in made.waits)


def test_an_epoch_is_due_although_its_server_has_purged_the_log_and_a_replica_is_away(servers: Servers) -> None:
    """It is what to do then."""
    servers.by_host["first"].is_up = False
    servers.by_host["host"].purged = LAST + 1
    made = Reading(servers, Stub(servers), new_epoch=True)
    made._published, made._new_epoch_for = at(LAST), "asked_for"
    made._options = replace(made._options, settings=FIRST)
    made._left("it is down")
    assert made.begun() == [f"asked_for at {at(LAST)}", "host"]


def test_replicas_of_a_server_whose_history_is_not_kept_are_not_read(servers: Servers) -> None:
    """A power loss would take back what was published from them."""
    servers.by_host["host"].refused = "sync_binlog"
    with pytest.raises(ServerSettingsError, match="sync_binlog of host"):
        Reading(servers, Stub(servers)).run()


def test_a_server_that_takes_a_setting_back_is_noticed_while_a_replica_is_followed(servers: Servers) -> None:
    """As it is while it is read itself."""
    made, watch = followed(servers), watch_of()
    made._look_at_lag(watch)
    assert watch.clock_seen is not None
    servers.by_host["host"].refused = "gtid_strict_mode"
    with pytest.raises(ServerSettingsError):
        made._look_at_lag(watch)


def test_a_server_that_comes_back_with_other_changes_has_lost_its_history(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers have gone on past those that were published, and the replica has what follows: they don't tell."""
    monkeypatch.setattr(primary, "ASK_EVERY_S", 0.0)
    made, watch = followed(servers), watch_of()
    made._look_at_lag(watch)
    assert watch.clock_seen is not None
    watch.clock_seen = None
    servers.by_host["host"].is_up = False
    made._sessions.close()
    made._progress = Progress(point(LAST + 1))
    made._look_at_lag(watch)
    servers.by_host["host"].is_up = True
    servers.by_host["host"].end = servers.by_host["first"].end = LAST + 4
    servers.by_host["host"].reused = frozenset({LAST, LAST + 1})
    made._progress = Progress(point(LAST + 4))
    with pytest.raises(ServerLeft), made._leaving():
        made._look_at_lag(watch)
    assert watch.clock_seen is None
    servers.opened.clear()
    assert made.begun() == [f"history_lost at {at(LAST + 4)}", "host"]


def test_all_that_was_published_before_a_server_was_away_is_doubted(servers: Servers) -> None:
    """Whether it was away before anybody looked, or again since: the first and the last tell."""
    made = followed(servers)
    for sequence in (LAST, LAST + 1, LAST + 2):
        made._at_host.doubt(Progress(point(sequence)))
    assert [each.checksum for each in made._at_host._doubted] == [LAST, LAST + 2]
    servers.by_host["host"].end = LAST + 2
    servers.by_host["host"].reused = frozenset({LAST + 2})
    with pytest.raises(SourceHistoryLost):
        made._at_host.check_published()


def test_a_loss_that_a_setting_allowed_ends_the_epoch_before_the_source_ends(servers: Servers) -> None:
    """Whoever mends the setting and starts it again would not find the loss any more."""
    made, watch = followed(servers), watch_of()
    servers.by_host["host"].refused = "sync_binlog"
    servers.by_host["host"].reused = frozenset({LAST})
    with pytest.raises(ServerLeft), made._leaving():
        made._look_at_lag(watch)
    servers.opened.clear()
    with pytest.raises(ServerSettingsError, match="sync_binlog"):
        made.run()
    assert servers.opened == [f"history_lost at {at(LAST)}"]


def test_a_server_that_logs_no_rows_is_not_compared(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksums are of something else."""
    monkeypatch.setattr(primary, "check_writer", lambda _: False)
    servers.by_host["host"].reused = frozenset({LAST})
    made, watch = followed(servers), watch_of()
    made._look_at_lag(watch)
    assert watch.clock_seen is not None


def test_a_server_that_has_not_yet_what_was_published_is_asked_again(servers: Servers) -> None:
    """A node of a cluster may be behind another one. Its clock says nothing meanwhile."""
    made, watch = followed(servers), watch_of()
    servers.by_host["host"].end = LAST - 1
    made._look_at_lag(watch)
    assert watch.clock_seen is None
    servers.by_host["host"].end = LAST
    made._look_at_lag(watch)
    assert watch.clock_seen is not None


@pytest.mark.parametrize(
    "error",
    [
        MariaDBError("the replica is missing a GTID"),
        BinlogFormatError("checksum mismatch", code="binlog_corrupt"),
        SourceHistoryLost("a sequence went back"),
    ],
)
def test_an_error_of_one_replica_ends_nothing(servers: Servers, error: Exception) -> None:
    """Another server is read. That of a server itself ends the source."""
    servers.by_host["first"].raises = error
    assert Reading(servers, Stub(servers)).begun() == ["first", "second"]


def test_an_error_of_the_server_itself_ends_the_source(servers: Servers) -> None:
    """Nobody else is asked whether it matters."""
    for each in servers.by_host.values():
        each.raises = BinlogFormatError("checksum mismatch", code="binlog_corrupt")
    with pytest.raises(BinlogFormatError):
        Reading(servers, Stub(servers)).run()
    assert servers.opened == ["first", "second", "host"]


def test_a_rival_for_the_server_id_is_waited_for(servers: Servers) -> None:
    """It would be met at another server, too."""
    servers.by_host["first"].raises = MariaDBError("another has it", code="server_id_in_use")
    made = Reading(servers, Stub(servers))
    made.run()
    assert set(servers.opened) == {"first"}


def test_a_shard_that_succeeds_others_begins_where_the_log_is(servers: Servers) -> None:
    """Replicas have purged what follows its ancestors' end, and the server has it."""
    servers.by_host["first"].purged = servers.by_host["second"].purged = LAST
    publisher = Stub(servers)
    publisher.begins_after = at(LAST - 10)
    assert Reading(servers, publisher).begun() == ["host"]


def test_a_replica_that_lags_is_waited_for_only_where_nothing_was_read(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then readers wait. The one that is read has caught up, and is given time again."""
    patience: list[float] = []
    waited = FollowingSource._check_replica

    def noted(self: FollowingSource, server: ConnectionSettings, patience_s: float) -> None:
        patience.append(patience_s)
        waited(self, server, 0.0)

    monkeypatch.setattr(FollowingSource, "_check_replica", noted)
    servers.by_host["first"].end = LAST - 1
    made = Reading(servers, Stub(servers))
    made._check_server()
    assert (made.server, patience) == (SECOND, [following.LAG_MAX_S] * 2)
    patience.clear()
    made._check_server()
    assert (made.server, patience) == (SECOND, [following._AT_ONCE_S, following.LAG_MAX_S])
    patience.clear()
    made._left("it lags")
    made._check_server()
    assert (made.server, patience) == (HOST, [following._AT_ONCE_S])
    patience.clear()
    monkeypatch.setattr(following, "AGAIN_EVERY_S", 0.0)
    made = Reading(servers, Stub(servers))
    made._check_server()
    made._left("it lags")
    made._check_server()
    assert patience[2:] == [following._AT_ONCE_S] * 2, "not the one that was left, either"


def test_servers_must_have_what_is_committed_and_not_what_was_given(servers: Servers) -> None:
    """What was given to a publisher that was lost was never published. No server may be refused for it."""
    made = followed(servers)
    assert made._published == at(LAST)
    made.status.position = at(LAST + 1)

    class Lost(Stub):
        def flush(self) -> None:
            raise KafkaUnreachable("it is gone")

    with pytest.raises(KafkaUnreachable):
        made._commit(Lost(servers))  # type: ignore[arg-type]
    assert made._published == at(LAST)
    made._commit(Stub(servers))  # type: ignore[arg-type]
    assert made._published == at(LAST + 1)


def test_what_is_read_after_the_last_commit_is_not_what_is_published(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that ends has given more than is in the topic."""
    made = followed(servers)

    def reads(_: Any, __: Any, ___: Any, progress: Progress) -> None:
        progress.position = at(LAST + 7)
        raise MariaDBUnreachable("it is gone")

    monkeypatch.setattr(source.MariaDBSource, "_read", reads)
    with pytest.raises(ServerLeft):
        made._read(Stub(servers), Schema(made), Progress(point()))  # type: ignore[arg-type]
    assert made._published == at(LAST)


def test_where_a_server_was_that_lost_it_since_says_nothing_of_the_replica_that_is_read(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody will ever have that: each replica would be left at the first look, as long as the source runs."""
    made, watch = followed(servers), watch_of()
    servers.by_host["host"].end = LAST + 1
    made._look_at_lag(watch)
    assert made._ends
    servers.by_host["host"].end = LAST
    made._left("its connection was lost")
    made._check_server()
    assert made.server == SECOND
    monkeypatch.setattr(following, "LAG_MAX_S", 0.0)
    made._look_at_lag(watch)
    assert not made._ends


def test_what_was_published_before_an_epoch_is_not_looked_for_in_it(servers: Servers) -> None:
    """Its server does not have that any more: the next look would end the new epoch, and so on for ever."""
    made = followed(servers)
    made._at_host.doubt(Progress(point()))
    servers.by_host["host"].reused = frozenset({LAST})
    publisher: Any = Stub(servers)
    made._new_epoch(publisher, Progress(point()), ServerPosition(at(LAST + 1), 1), "history_lost")
    assert made._at_host.check_published()
