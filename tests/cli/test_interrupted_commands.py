"""Ctrl-C at any moment of the commands that talk to servers: what is printed, the exit code, and what is left.

`freshet up`, rebuild and verify have tests of their own.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from freshet.local.mariadb import MariaDBAddress
from tests.cli.interrupting import Moment, check_end, interrupted, up
from tests.consumers.consuming import until
from tests.lengths import LONG, length
from tests.marked import MARK, mark_of
from tests.patience import PATIENCE_S

MOMENTS = length(1, 5)
SEED = int(os.environ.get("FRESHET_TEST_SEED", time.time_ns() % 100_000))
SERVICES = ("consume --keyspace=shop", "serve --port=0", "node --port=0", "source mariadb --keyspace=shop")
OTHERS = ("doctor --source=shop", "lag shop", "backfill start shop orders", "backfill status shop")
DEMO = "demo"
OF_A_FRONT = (
    "sink sqlite:///copy.db --keyspace=shop --table=shop.many",
    "sink sqlite:///once.db --keyspace=shop --table=shop.many --once",
    "log shop",
    "log shop --follow",
    "log shop --to=kept",
    "log shop --to=followed --follow",
    "get shop many 7",
)
OF_KAFKA = (
    "log shop --to-topic=shop-log --follow",
    "lag shop",
    "inspect shop many 7",
    "cluster status shop",
    "swap shop --to=127.0.0.1:9",
    "dlq list shop",
    "backfill start shop many --follow",
    "backfill status shop",
    "snapshots make shop --to=snapshots",
    "snapshots prune shop --at=snapshots",
    "export --keyspace=shop --to=exported",
    "export --keyspace=shop --to=exported --follow",
    "rebuild --keyspace=shop --to=rebuilt",
    "rebuild --keyspace=shop --to=rebuilt --follow",
    "verify shop",
    "verify shop --every=60",
)
OF_A_DATABASE = ("doctor --source=shop",)
WORKING = (
    *OF_A_FRONT,
    *(each for each in OF_KAFKA if each.split()[0] not in ("rebuild", "verify", "swap")),
    "snapshots ls shop --at=snapshots",
)
"""What a running installation is asked. Moving its readers would be a change of it."""
GO_ON = {
    *SERVICES,
    OF_A_FRONT[0],
    *(each for each in (*OF_A_FRONT, *OF_KAFKA) if each.endswith("--follow") and not each.startswith("backfill")),
    "verify shop --every=60",
}
"""They run until they are stopped."""
SILENT = (*OF_A_FRONT, *OF_KAFKA, *OF_A_DATABASE, *SERVICES)
SETTINGS = """\
data_dir = "data"
[kafka]
bootstrap = "127.0.0.1:{port}"
[serve]
port = {port}
[keyspaces.shop.source]
kind = "mariadb"
host = "127.0.0.1"
port = {port}
databases = ["shop"]
"""


@pytest.fixture
def silent() -> Iterator[tuple[int, threading.Event]]:
    """A port at which somebody takes connections and never says a word, and whether one has come."""
    met, taken = threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            with suppress(OSError):
                while True:
                    taken.append(server.accept()[0])
                    met.set()

        threading.Thread(target=take, daemon=True).start()
        yield server.getsockname()[1], met
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
    for each in taken:
        each.close()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("command", SILENT if LONG else SILENT[::4])
def test_ctrl_c_ends_the_wait_for_a_silent_server(
    command: str, silent: tuple[int, threading.Event], tmp_path: Path
) -> None:
    """Amid a request that is never answered: soon, with the exact exit code, and in one line."""
    port, met = silent
    (tmp_path / "freshet.toml").write_text(SETTINGS.format(port=port))
    log = tmp_path / "said.log"
    with log.open("wb") as out:
        line = [sys.executable, "-m", "freshet", *command.split()]
        process = subprocess.Popen(line, cwd=tmp_path, stdout=out, stderr=out)
        until(lambda: met.is_set() or process.poll() is not None, "it asks")
        process.send_signal(signal.SIGINT)
        code = process.wait(PATIENCE_S)
    check_end(code, log.read_text(errors="replace"), command, is_service=command in GO_ON)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("number", range(MOMENTS))
@pytest.mark.parametrize("command", [*SERVICES, *OTHERS, DEMO])
def test_ctrl_c_ends_a_command_in_order(settings: Path, tmp_path: Path, command: str, number: int) -> None:
    """Amid imports, the start, or work. A service has done its work (0), others were interrupted (130).

    One that ended before is no matter of this test. FRESHET_TEST_SEED repeats the moments.
    """
    rng = random.Random(f"{SEED}/{command}/{number}")
    (empty := tmp_path / "empty").mkdir()
    with mark_of(SEED, command, number) as mark:
        interrupted(
            ["--config", str(settings), *command.split()],
            Moment.of(rng, 60 if command == DEMO else 8),
            mark,
            f"seed {SEED}",
            cwd=empty,
            environment={MARK: mark, "DEMO_SECONDS": "10"},
            is_service=command in SERVICES,
            by_itself=() if command in SERVICES else (0, 1),
        )


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("number", range(MOMENTS))
def test_ctrl_c_ends_what_works_with_a_running_installation(
    settings: Path, tmp_path: Path, mariadb: MariaDBAddress, database: str, number: int
) -> None:
    """Copies, logs, snapshots and exports amid their work."""
    with mariadb.connect(database=database, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE many (id INT PRIMARY KEY, v INT)")
    with up(settings) as (_, printed):
        until(lambda: "shop is ready" in printed(), "shop is ready")
        with mariadb.connect(database=database, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO many SELECT seq, seq FROM seq_1_to_100000")
        (empty := tmp_path / "empty").mkdir()
        for command in WORKING:
            rng = random.Random(f"{SEED}/{command}/{number}")
            with mark_of(SEED, command, number) as mark:
                interrupted(
                    ["--config", str(settings), *command.replace("shop.many", f"{database}.many").split()],
                    Moment.of(rng, 8),
                    mark,
                    f"seed {SEED}",
                    cwd=empty,
                    environment={MARK: mark},
                    is_service=command in GO_ON,
                    by_itself=() if command in GO_ON else (0,),
                )
