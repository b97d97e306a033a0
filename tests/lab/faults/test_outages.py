"""Servers that are away when our processes start, stores that vanish: a refusal or the source, no wrong answer."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from lab.demo.catalog_traffic import CatalogDriver
from lab.demo.row_traffic import create_tables, journaled
from lab.demo.stack import ROWS
from lab.faults.rig import FaultyStack
from lab.faults.run import tracebacks, wait_caught_up
from serving.client import ClientError, FreshetClient
from tests.consumers.consuming import until

pytestmark = [pytest.mark.integration, pytest.mark.slow]
SHARD = f"{ROWS}/0"


def prepare(rig: FaultyStack) -> None:
    """Tables in the database, and one row."""
    with rig.connect(ROWS) as connection, connection.cursor() as cursor:
        create_tables(connection)
        cursor.execute("INSERT INTO accounts (id, version, owner, balance) VALUES (1, 1, 'Zoë', 1)")
    CatalogDriver.prepare(rig)


def write(rig: FaultyStack, version: int) -> str:
    """A new version of the row; its position."""
    with rig.connect(ROWS) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE accounts SET version = %s WHERE id = 1", (version,))
        cursor.execute("SELECT @@last_gtid")
        [gtid] = cursor.fetchone() or [""]
    return f"MariaDB/{gtid}"


def assert_calm(rig: FaultyStack) -> None:
    """All our processes run, and none has shown a traceback."""
    assert rig.unexpected_exit() is None
    for role in rig.roles:
        assert tracebacks(rig.directory / f"{role}.log") == []


def answered(url: str) -> Callable[[], Any]:
    """A condition: the front answers at all."""

    def ask() -> Any:
        try:
            return httpx2.get(f"{url}/healthz", timeout=2).status_code == httpx2.codes.OK
        except httpx2.HTTPError:
            return False

    return ask


def test_every_process_waits_for_a_kafka_that_is_away_at_start(rig: FaultyStack) -> None:
    """Meanwhile the front answers from the source; when Kafka comes, the cache takes over by itself."""
    prepare(rig)
    rig.kafka.kill()
    rig.start_roles(wait=False)
    until(answered(rig.url), "the front answers")
    with FreshetClient(rig.url) as client:
        assert httpx2.get(f"{rig.url}/readyz", timeout=10).status_code == httpx2.codes.SERVICE_UNAVAILABLE
        row = client.get_row(ROWS, f"{ROWS}.accounts", 1)
        assert (row.served_from, row.freshness, (row.value or {})["version"]) == ("source", "eventual", 1)
        for role in ("source-rows", "source-catalog", "consume", "serve"):
            until(lambda r=role: "kafka_unreachable" in (rig.directory / f"{r}.log").read_text(), f"{role} says so")  # type: ignore[misc]
        assert_calm(rig)
        rig.kafka.start()
        rig.wait_ready()
        position = write(rig, 2)
        session = client.session()
        session.observe(SHARD, position)
        row = until(
            lambda: found if (found := session.get_row(ROWS, f"{ROWS}.accounts", 1)).served_from == "cache" else None,
            "served from the cache",
        )
        assert (row.freshness, row.value["version"]) == ("fresh", 2)
    assert_calm(rig)


def test_with_mariadb_away_proved_answers_go_on_and_others_are_refused(rig: FaultyStack) -> None:
    """What the cache can prove is answered; what only the source knows is 503; afterwards all is as before."""
    prepare(rig)
    rig.start_roles()
    position = write(rig, 2)
    with FreshetClient(rig.url) as client:
        session = client.session()
        session.observe(SHARD, position)
        wait_caught_up(rig)
        until(lambda: session.get_row(ROWS, f"{ROWS}.accounts", 1).served_from == "cache", "the front finds the owner")
        until(lambda: session.get_row(ROWS, f"{ROWS}.accounts", 77).served_from == "cache", "the table is complete")
        rig.mariadb.kill()
        row = session.get_row(ROWS, f"{ROWS}.accounts", 1)
        assert (row.served_from, row.freshness, (row.value or {})["version"]) == ("cache", "fresh", 2)
        absent = session.get_row(ROWS, f"{ROWS}.accounts", 78)
        assert (absent.served_from, absent.freshness, absent.found) == ("cache", "fresh", False)
        with pytest.raises(ClientError) as unknown:
            session.get_row(ROWS, f"{ROWS}.accounts", 1, max_staleness_ms=0, max_wait_ms=0)
        assert (unknown.value.status, unknown.value.code) == (503, "source_unreachable")
        later = client.session()
        domain, server, sequence = position.removeprefix("MariaDB/").split("-")
        later.observe(SHARD, f"MariaDB/{domain}-{server}-{int(sequence) + 1}")
        with pytest.raises(ClientError) as ahead:
            later.get_row(ROWS, f"{ROWS}.accounts", 1, max_wait_ms=100)
        assert ahead.value.status == 503
        rig.mariadb.start()
        assert not until(lambda: answer(session, 77), "the source answers again").found
    assert_calm(rig)


def answer(session: Any, number: int) -> Any:
    """The row, or None while it is refused."""
    try:
        return session.get_row(ROWS, f"{ROWS}.accounts", number)
    except ClientError:
        return None


def test_a_store_that_vanishes_under_its_owner_is_rebuilt(rig: FaultyStack) -> None:
    """Somebody moves the directory away: commits fail, nothing wrong is answered, and the topic gives it back."""
    prepare(rig)
    rig.start_roles()
    wait_caught_up(rig)
    store = rig.stores / "consume" / ROWS
    shutil.move(store, rig.directory / "taken-away")
    position = write(rig, 3)
    with FreshetClient(rig.url) as client:
        session = client.session()
        session.observe(SHARD, position)

        def from_the_cache() -> Any:
            row = answer(session, 1)
            assert row is None or (row.value or {})["version"] == 3
            return row is not None and row.served_from == "cache" and (store / "0" / "manifest.json").exists()

        until(from_the_cache, "rebuilt")
    assert_calm(rig)


def test_a_paused_process_that_is_asked_to_stop_stops_when_it_goes_on(rig: FaultyStack) -> None:
    """SIGSTOP, SIGTERM, SIGCONT: it ends in order, its stores committed."""
    prepare(rig)
    rig.start_roles()
    process = rig.roles["consume"].process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGTERM)
    time.sleep(0.5)  # nothing may happen meanwhile
    assert process.running()
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: not process.running(), "stopped")
    assert "partition released" in process.log_tail()


def test_the_journal_knows_every_commit_by_its_sequence(rig: FaultyStack) -> None:
    """What the harness believes of commits in doubt is what the server acknowledged of the others."""
    from lab.demo.row_traffic import RowTraffic

    with rig.connect(ROWS) as connection:
        create_tables(connection)
    traffic = RowTraffic(lambda: rig.connect(ROWS, autocommit=False), ROWS, 50, 5, reconnect=True)
    traffic.start(3, 0.001)
    until(lambda: traffic.committed > 200, "transactions")
    traffic.stop()
    assert traffic.errors == []
    acknowledged = {sequence for changes in traffic.history.changes.values() for sequence, _ in changes}
    with rig.connect() as connection:
        found = list(journaled(connection))
    assert {sequence for _, sequence in found} == acknowledged
    assert len({number for number, _ in found}) == len(found)
