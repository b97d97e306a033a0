"""What `freshet get` demands of the front, and what the doctor takes for a right."""

from __future__ import annotations

import json
from typing import Any, Self

import pytest

from freshet import cli
from freshet.checks import source as checks
from freshet.commands.get import _position as position_of
from freshet.settings import Settings
from freshet.settings_errors import SettingsError
from serving.client.answers import Row

POSTGRES = {
    "kind": "debezium",
    "server": "postgres",
    "database": "d",
    "databases": ["public"],
    "topic_prefix": "k",
    "connect_url": "http://127.0.0.1:8083",
}
GRANTS = [
    ("GRANT USAGE ON *.* TO `freshet`@`%`",),
    ("GRANT ALL PRIVILEGES ON `shop`.* TO `freshet`@`%`",),
]


class Front:
    """A client that notes what is asked of it. It is its session, too."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.found = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def session(self, token: str | None) -> Self:
        self.asked.append(f"session {token}")
        return self

    def observe(self, shard: str, position: str) -> None:
        self.asked.append(f"after {shard} {position}")

    def get_row(self, *_: object, last_known: bool = False, **__: object) -> Row:
        self.asked.append("last known" if last_known else "proved")
        return Row("cache", "fresh", "why", "token", self.found, {} if self.found else None)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], ["session None", "last known"]),
        (["--token", "t"], ["session t", "proved"]),
        (["--after", "MariaDB/0-1-5", "--shard", "shop/0"], ["session None", "after shop/0 MariaDB/0-1-5", "proved"]),
    ],
)
def test_an_image_of_before_a_ddl_will_do_only_where_nothing_is_demanded(
    words: list[str], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever shows a token would get a row that is older than what the session has seen."""
    front = Front()
    monkeypatch.setattr("freshet.commands.get.front_client", lambda *_: front)
    monkeypatch.setenv("FRESHET_KEYSPACES", '{"shop": {}}')
    assert cli.run(["get", "shop", "shop.t", "1", "--last-known", *words]) == 0
    assert front.asked == asked


@pytest.mark.parametrize(
    ("more", "is_granted"),
    [
        ("", False),
        ("GRANT REPLICATION SLAVE ON *.* TO `f`@`%`", True),
        ("GRANT ALL PRIVILEGES ON *.* TO x", True),
    ],
)
def test_all_rights_on_a_database_let_nobody_read_the_binlog(
    more: str, is_granted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the whole server's: a source would be refused at its start, after the doctor found nothing."""
    connection: Any = None
    monkeypatch.setattr(checks, "fetch_all", lambda *_: [*GRANTS, (more,)])
    assert checks._is_granted(connection, checks._MAY_REPLICATE) is is_granted


@pytest.mark.parametrize("of", [{"kind": "catalog"}, {"source": POSTGRES}])
def test_a_gtid_is_taken_for_no_other_kind_of_position(of: dict[str, object]) -> None:
    """What is demanded of a PostgreSQL in words of MariaDB's would be a position that its log never has."""
    settings = Settings(keyspaces={"k": of})  # type: ignore[dict-item]
    with pytest.raises(SettingsError, match="don't say what kind of position 0-1-5 is") as refused:
        position_of(settings, "k", "0-1-5")
    assert "Postgres/" in refused.value.hint
    assert position_of(settings, "k", "MariaDB/0-1-5") == "MariaDB/0-1-5"


@pytest.mark.parametrize(("found", "code"), [(True, 0), (False, 1)])
def test_a_row_that_is_not_there_is_told_by_the_exit_code(
    found: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script asks for nothing else."""
    front = Front()
    front.found = found
    monkeypatch.setattr("freshet.commands.get.front_client", lambda *_: front)
    assert cli.run(["get", "shop", "shop.t", "1", "--json"]) == code
    assert json.loads(capsys.readouterr().out)["found"] is found
