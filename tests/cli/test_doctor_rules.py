"""What the doctor makes of what it is told by a server or this machine: without either."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from freshet import cli
from freshet.checks import machine, postgres, source
from freshet.checks.finding import Check
from freshet.checks.machine import GIB
from freshet.checks.source import DAY_S, Sized
from freshet.commands import doctor
from freshet.sections.sources import MariaDBSourceSettings
from stream.sources.debezium.connector import Connector
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError
from stream.sources.mariadb.schema import TableInfo

SERVER = ConnectionSettings("127.0.0.1", 1, "u", "p")
NOBODY: Any = None
"""A connection that is not used: what it would answer is stood in for."""


@pytest.mark.parametrize(
    ("kept_s", "status", "found"),
    [
        (0, "ok", "until somebody purges it"),
        (DAY_S, "warning", "24.0 h"),
        (2 * DAY_S, "ok", "2 days"),
        (None, "ok", "until somebody purges it"),
    ],
)
def test_a_log_that_is_kept_for_ever_is_no_warning(
    kept_s: int | None, status: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nought means that nothing is removed, and so does a server without the setting."""
    rows = [] if kept_s is None else [("binlog_expire_logs_seconds", f"{kept_s}.000000")]
    monkeypatch.setattr(source, "fetch_all", lambda *_: rows)
    [check] = source._log_kept(NOBODY, SERVER)
    assert check.status == status
    assert check.found.startswith(found)


@pytest.mark.parametrize(
    ("days", "status", "told"), [(0, "ok", "until somebody purges it"), (1, "warning", "24.0 h"), (10, "ok", "10 days")]
)
def test_a_log_that_is_kept_by_the_day_is_told_as_such(
    days: int, status: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB 10.5 has no setting in seconds: the doctor took a log of one day for one that nobody removes."""
    monkeypatch.setattr(source, "fetch_all", lambda *_: [("expire_logs_days", str(days))])
    [check] = source._log_kept(NOBODY, SERVER)
    assert (check.status, check.found.split(":")[0]) == (status, told)
    assert check.fix == ("SET GLOBAL expire_logs_days = 7" if status == "warning" else "")


@pytest.mark.parametrize(
    ("seconds", "days", "told", "fix"),
    [
        (0, 1, "24.0 h", "SET PERSIST expire_logs_days = 7"),
        (DAY_S, 0, "24.0 h", f"SET PERSIST binlog_expire_logs_seconds = {7 * DAY_S}"),
        (3 * DAY_S, 0, "3 days", ""),
        (0, 0, "until somebody purges it", ""),
    ],
)
def test_a_log_of_mysql_is_kept_by_the_setting_that_is_not_nought(
    seconds: int, days: int, told: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL 8.0 has both: one that removes its log by the day was taken for one that never does."""
    rows = [("binlog_expire_logs_seconds", str(seconds)), ("expire_logs_days", str(days))]
    monkeypatch.setattr(source, "fetch_all", lambda *_: rows)
    [check] = source._log_kept(NOBODY, replace(SERVER, product="MySQL"))
    assert (check.found.split(":")[0], check.fix) == (told, fix)


@pytest.mark.parametrize(
    ("limit", "rate", "is_limited"), [(0, "1,000 rows", False), (100, "100 rows", True), (5_000, "1,000 rows", False)]
)
def test_a_limit_above_what_the_server_gives_makes_no_backfill_faster(
    limit: int, rate: str, is_limited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that is told is of the slower of both; nought is no limit."""
    table = TableInfo("shop", "t", (), ())
    monkeypatch.setattr(source, "_sizes", lambda *_: {("shop", "t"): Sized(1_000_000, 1 << 20)})
    monkeypatch.setattr(source, "_rows_per_s", lambda *_: 1_000 / source.READING_SHARE)
    settings = MariaDBSourceSettings(kind="mariadb", databases=["shop"], backfill_rows_per_s=limit)
    [check] = source._backfill(NOBODY, SERVER, settings, [table])
    assert f"at {rate} a second" in check.found
    assert ("backfill_rows_per_s" in check.found) is is_limited


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        ([("s.t", True, False)], ["ok"]),
        ([("s.t", False, False), ("s.u", True, False)], ["warning"]),
        ([("s.t", True, True)], ["warning"]),
        ([("s.t", False, True), ("s.u", True, True)], ["warning", "warning"]),
        ([], []),
    ],
)
def test_a_user_from_whom_rows_are_hidden_may_not_read_all(
    rights: list[tuple[str, bool, bool]], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a right that is missing, or by row-level security: neither is fine because of the other."""
    monkeypatch.setattr(postgres, "fetch_all", lambda *_: rights)
    found = [*postgres._rights(NOBODY, [name for name, _, _ in rights])]
    assert [check.status for check in found] == said


@pytest.mark.parametrize(
    ("limit", "used", "status"),
    [
        ("max", "0", "ok"),
        (str(8 * GIB), str(GIB), "ok"),
        (str(4 * GIB), str(GIB), "warning"),
        (str(2 * GIB), str(3 * GIB), "missing"),
    ],
)
def test_the_memory_of_a_container_is_its_own(
    limit: str, used: str, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the machine has: what is above the limit is killed."""
    told = {"memory.max": limit, "memory.current": used}
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB))
    monkeypatch.setattr(Path, "read_text", lambda path, *_, **__: told[path.name])
    [check] = machine._memory()
    assert check.status == status


class Chunks:
    """A reader of chunks of so many rows, after which the table ends; one below nought can't be read."""

    def __init__(self, *sizes: int) -> None:
        self.sizes, self.closed = [*sizes], 0

    def estimated_rows(self, _: str) -> int:
        return 0

    def read(self, *_: object) -> Any:
        size = self.sizes.pop(0) if self.sizes else 0
        if size < 0:
            raise MariaDBError("it is locked")
        return SimpleNamespace(rows=[()] * size, last=("key",) if self.sizes else None)

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("sizes", "per_s"),
    [((10,), 10.0), ((10, 30), 20.0), ((10, 20, 30, 1_000), 20.0), ((), None), ((-1,), None), ((10, -1), None)],
)
def test_a_sample_counts_all_rows_that_were_read_and_ends_its_session(
    sizes: tuple[int, ...], per_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk takes a second here, and three are enough. The session would hold its snapshot open."""
    seconds = itertools.count()
    reader, table = Chunks(*sizes), SimpleNamespace(name="shop.t", describe=lambda: None)
    monkeypatch.setattr(source, "ChunkReader", lambda _: reader)
    monkeypatch.setattr(source, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))
    assert source._rows_per_s(SERVER, table) == per_s  # type: ignore[arg-type]
    assert reader.closed == 1


@pytest.mark.parametrize(
    ("sessions", "grants", "status", "found"),
    [
        ([("c", "Binlog Dump GTID")], "", "ok", "c reads"),
        ([("c", "Sleep"), ("other", "Binlog Dump")], "GRANT PROCESS ON *.* TO x", "warning", "no session of c reads"),
        ([("c", "Sleep"), ("other", "Binlog Dump")], "", "warning", "can't be seen"),
        ([], "GRANT ALL PRIVILEGES ON *.* TO x", "warning", "no session of c reads"),
    ],
)
def test_a_replica_of_somebody_else_is_not_the_connector(
    sessions: list[tuple[str, str]], grants: str, status: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a session of its user that reads no log: at the wrong server nothing would ever fit."""
    listed = [(1, user, "host", None, command, 0, "", None) for user, command in sessions]
    monkeypatch.setattr(source, "fetch_all", lambda _, sql: listed if "PROCESSLIST" in sql else [(grants,)])
    check = source._reads_here(NOBODY, Connector("pre", ("", ""), user="c"), SERVER)
    assert check.status == status
    assert found in check.found


@pytest.mark.parametrize(
    ("words", "examined"),
    [
        ([], ["machine"]),
        (["--kafka"], ["kafka"]),
        (["--source", "shop"], ["shop"]),
        (["--source", "shop", "--kafka"], ["shop", "kafka"]),
    ],
)
def test_what_is_asked_for_is_examined_and_nothing_else(
    words: list[str], examined: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both where both are asked for: what nobody looked at would pass for healthy."""
    monkeypatch.setattr(doctor, "_of_machine", lambda _: [Check("machine", "ok", "")])
    monkeypatch.setattr(doctor, "_of_kafka", lambda _: [Check("kafka", "ok", "")])
    monkeypatch.setattr(doctor, "_of_source", lambda _, keyspace: iter([Check(keyspace, "ok", "")]))
    assert cli.run(["doctor", "--json", *words]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["checks"]] == examined
