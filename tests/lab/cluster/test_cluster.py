"""Nodes on real servers under a random schedule: no answer is wrong, and reads are answered."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from consumers.fold.state import FOLD_VERSION
from lab.blackbox.availability import ANSWER_S_MAX
from lab.cluster.__main__ import GAP_S, cluster_schedule, summary, upgrade_schedule
from lab.cluster.kept import kept_version
from lab.cluster.rig import SOURCE, node_names, targets_of
from lab.cluster.run import SILENT_S_MAX, run_cluster
from lab.faults.schedule import LASTS_S
from tests.lengths import LONG, length
from tests.servers import choice

SEED = "4500"
"""Short as it is, its schedule kills a broker and a node, and has a pause, a slow disk, a join and bad networks."""
SECONDS, NODES = length(120, 1800), length(3, 5)
SHORT_GAP_S = 7.0
SILENT_S = SILENT_S_MAX if LONG else ANSWER_S_MAX
"""How fast a busy machine takes over is no matter of right or wrong: only the soak, alone on its machine, judges it."""


@pytest.fixture(scope="module")
def server_files() -> None:
    """Fetches the servers' files before a test's time runs."""
    choice.prefetch({"new_kafka", "new_mariadb"})


def test_a_long_schedule_meets_every_kind_at_every_target_and_faults_stay_apart() -> None:
    """So far apart that reads are left which no fault excuses; and a seed gives the same again."""
    targets = targets_of(5)
    faults = cluster_schedule(1, 7200, targets, GAP_S)
    assert {(each.target, each.kind) for each in faults} == {(name, kind) for name in targets for kind in targets[name]}
    assert {each.kind for each in faults} <= set(LASTS_S)
    assert faults == cluster_schedule(1, 7200, targets, GAP_S)
    apart = [after.at_s - before.at_s for before, after in pairwise(faults)]
    assert GAP_S / 2 < sum(apart) / len(apart) < GAP_S * 2


def test_an_upgrade_replaces_each_process_once_and_the_source_last() -> None:
    """As docs/operating/upgrading.md has it; all of it within the run."""
    faults = upgrade_schedule(60, 3)
    assert [each.target for each in faults] == [*node_names(3), SOURCE]
    assert [each.at_s for each in faults] == sorted(each.at_s for each in faults)
    assert faults[0].at_s > 0
    assert faults[-1].at_s < 50


def test_the_kept_version_folds_otherwise(tmp_path: Path) -> None:
    """So an upgrade from it makes all stores anew: the hardest one. Its code is taken from this checkout's history."""
    kept = kept_version(tmp_path)
    if kept is None:
        pytest.skip("this is no checkout with its history")
    [version] = re.findall(r"^FOLD_VERSION = (\d+)$", (kept / "consumers/fold/state.py").read_text(), re.M)
    assert int(version) == FOLD_VERSION - 1
    looks = [sys.executable, "-c", "import sys; print(sys.modules['stream.kafka.locations'].__file__)"]
    environment = os.environ | {"PYTHONPATH": str(kept)}
    found = subprocess.check_output(looks, cwd=tmp_path, env=environment, text=True)
    assert found.strip() == str(kept / "stream/kafka/locations.py"), "what two of its threads need at once is not there"


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("server_files")
def test_no_answer_is_wrong_and_reads_are_answered_whatever_happens_to_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Kills, pauses, drains, brokers that are away, a slow disk, a bad network, all amid an upgrade of all processes.

    FAULTS_SEED=now: another schedule.
    """
    wanted = os.environ.get("FAULTS_SEED", SEED)
    seed = int(time.time()) if wanted == "now" else int(wanted)
    faults = cluster_schedule(seed, SECONDS, targets_of(NODES), GAP_S if LONG else SHORT_GAP_S)
    faults += upgrade_schedule(SECONDS, NODES)
    findings = run_cluster(SECONDS, seed, faults=faults, nodes=NODES, silent_s_max=SILENT_S)
    assert findings.passed, f"FAULTS_SEED={seed}\n{capsys.readouterr().out}\n{summary(findings)}"
    assert findings.answers["cache/fresh"] > 0
    assert findings.available.reads > 0
