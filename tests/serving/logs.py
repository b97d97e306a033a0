"""``freshet log`` of a running stack: as a process that is killed, or ends; and traffic that it has to tell."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest

from tests.patience import PATIENCE_S
from tests.serving.stack import ServingStack, without_settings


def command(stack: ServingStack, *words: str) -> list[str]:
    """``freshet log`` of the stack's keyspace."""
    return [sys.executable, "-m", "freshet", "--config", str(stack.config), "log", stack.keyspace, *words]


def run_for(stack: ServingStack, seconds: float, *words: str) -> None:
    """Runs it for so long, and kills it."""
    process = subprocess.Popen(
        command(stack, *words), stderr=subprocess.PIPE, env=without_settings() | stack.environment
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(seconds)
    finally:
        process.kill()
        _, said = process.communicate()
    assert b"error[" not in said


def finished(stack: ServingStack, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs it to its end."""
    environment = without_settings() | stack.environment
    run = command(stack, *words)
    return subprocess.run(run, capture_output=True, timeout=4 * PATIENCE_S, text=True, check=False, env=environment)


@contextmanager
def written(stack: ServingStack, choose: Random, values: Callable[[int], str]) -> Iterator[list[str]]:
    """Rows of ``items`` are replaced meanwhile. Gives the GTIDs of the commits, a list that grows.

    ``values``: number of the commit → what its rows have beside their key, as SQL.
    """
    gtids, ends = list[str](), threading.Event()

    def write() -> None:
        with stack.connect(autocommit=False) as connection, connection.cursor() as cursor:
            while not ends.is_set():
                for _ in range(choose.randint(1, 4)):
                    cursor.execute(f"REPLACE INTO items VALUES ({choose.randint(1, 40)}, {values(len(gtids))})")
                connection.commit()
                cursor.execute("SELECT @@last_gtid")
                gtids.append(f"MariaDB/{cursor.fetchone()[0]}")
                ends.wait(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield gtids
    finally:
        ends.set()
        writer.join()
