"""What is refused of a MySQL, by its answers alone: no server is needed."""

from __future__ import annotations

from typing import Any

import pytest

from lab.simulation.mariadb.server import DEFAULTS, MYSQL
from stream.sources.mariadb.connection import ServerSettingsError
from stream.sources.mariadb.mysql import requirements


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
