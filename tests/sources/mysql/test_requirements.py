"""What is refused of a MySQL, by its answers alone: no server is needed."""

from __future__ import annotations

from typing import Any

import pytest

from lab.simulation.mariadb.server import DEFAULTS, MYSQL
from stream.sources.mariadb.connection import ServerSettingsError
from stream.sources.mariadb.mysql import requirements
from stream.sources.mariadb.requirements import problems_of


class Server:
    """A session of a MySQL."""

    def get_server_info(self) -> str:
        """As at login."""
        return "8.4.3"


@pytest.mark.parametrize("name", ["sync_binlog", "innodb_flush_log_at_trx_commit"])
def test_a_log_and_an_engine_that_a_crash_parts_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """After it one of both lacks transactions that the other has: rows of before would be said to be fresh."""
    variables = {each: str(value) for each, value in (DEFAULTS | MYSQL).items()}
    monkeypatch.setattr(requirements, "fetch_all", lambda *_: variables.items())
    monkeypatch.setattr(requirements, "binlog_status", lambda _: ("bin.000001", 4, "", ""))
    monkeypatch.setattr(requirements, "is_replica", lambda _: False)
    server: Any = Server()

    def refusals() -> list[str]:
        found = []
        for check in requirements.checks(server):
            try:
                check()
            except ServerSettingsError as error:
                found.append(error.hint)
        return found

    assert refusals() == []
    variables[name] = "2"
    assert refusals() == [f"SET PERSIST {name} = 1"]


def test_a_server_without_a_log_is_told_all_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing of a log's end: who examines it met an error of Python, and no word of the log."""
    variables = {each: str(value) for each, value in (DEFAULTS | MYSQL | {"log_bin": "OFF"}).items()}
    monkeypatch.setattr(requirements, "fetch_all", lambda _, sql, *__: variables.items() if "VARIABLES" in sql else [])
    monkeypatch.setattr(requirements, "is_replica", lambda _: False)
    server: Any = Server()
    assert [str(problem) for problem in problems_of(server)] == ["the server writes no binary log"]
