"""Ctrl-C at any moment of the commands that talk to servers. `freshet up` and Spark's jobs have tests of their own."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.cli.interrupting import Moment, interrupted
from tests.lengths import length
from tests.marked import MARK, mark_of

MOMENTS = length(1, 5)
SEED = int(os.environ.get("FRESHET_TEST_SEED", time.time_ns() % 100_000))
SERVICES = ("consume --keyspace=shop", "serve --port=0", "node --port=0", "source mariadb --keyspace=shop")
OTHERS = ("doctor --source=shop", "lag shop", "backfill start shop orders", "backfill status shop")
DEMO = "demo"


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
    codes = (0,) if command in SERVICES else (0, 1, 130)
    with mark_of(SEED, command, number) as mark:
        said = interrupted(
            ["--config", str(settings), *command.split()],
            Moment.of(rng, 60 if command == DEMO else 8),
            mark,
            f"seed {SEED}",
            cwd=empty,
            environment={MARK: mark, "DEMO_SECONDS": "10"},
            codes=codes,
        )
    assert "error[internal]" not in said
