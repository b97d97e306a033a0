"""A local server whose port another process has taken: it is not taken for that one, and starts on another port."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freshet.local import server as servers
from freshet.local.errors import LocalServerError
from freshet.local.hive.server import HiveServer
from freshet.local.kafka import KafkaServer
from freshet.local.mariadb import MariaDBServer
from freshet.local.server import LocalServer

pytestmark = pytest.mark.integration


@pytest.fixture
def just_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port is taken after it was found free."""
    monkeypatch.setattr(servers, "port_is_free", lambda _: True)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody else listens, and answers nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.mark.usefixtures("just_taken")
def test_an_answer_of_another_server_is_not_its_own(new_mariadb: Callable[..., MariaDBServer], tmp_path: Path) -> None:
    """Two that find the usual port free at once both run, each on a port of its own."""
    first = new_mariadb()
    with MariaDBServer(tmp_path / "second").start(first.port) as second:
        assert second.port != first.port
        with second.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@pid_file")
            assert cursor.fetchone() == (str(second.data_dir / "mariadb.pid"),)


@pytest.mark.usefixtures("just_taken")
@pytest.mark.parametrize("kind", [KafkaServer, HiveServer])
def test_another_port_is_tried(kind: Callable[[Path], LocalServer], taken: int, tmp_path: Path) -> None:
    """Each kind of server says that its port is taken, and is started again on another one."""
    with kind(tmp_path / "server").start(taken) as server:
        assert server.port != taken
        kept = server.port
    with kind(tmp_path / "server") as server:
        assert server.port == kept


@pytest.mark.usefixtures("just_taken")
def test_a_wanted_port_is_not_exchanged(taken: int, tmp_path: Path) -> None:
    """It is an error, which shows what the server says."""
    with pytest.raises(LocalServerError, match="Address already in use"):
        MariaDBServer(tmp_path / "server", port=taken).start()
