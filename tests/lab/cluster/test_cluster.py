"""Nodes on real servers under a random schedule: no answer is wrong, and reads are answered."""

from __future__ import annotations

import os
import time
from itertools import pairwise

import pytest

from lab.cluster.__main__ import GAP_S, cluster_schedule, summary
from lab.cluster.rig import targets_of
from lab.cluster.run import run_cluster
from lab.faults.schedule import LASTS_S
from tests.lengths import LONG, length
from tests.servers import choice

SEED = "596"
"""Short as it is, its schedule has a kill, pauses, a drain, a node that joins, and a bad network."""
SECONDS, NODES = length(40, 600), length(3, 5)
SHORT_GAP_S = 7.0


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


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("server_files")
def test_no_answer_is_wrong_and_reads_are_answered_whatever_happens_to_nodes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Kills, pauses, drains, nodes that come and go, a bad network; FAULTS_SEED=now: another schedule."""
    wanted = os.environ.get("FAULTS_SEED", SEED)
    seed = int(time.time()) if wanted == "now" else int(wanted)
    faults = cluster_schedule(seed, SECONDS, targets_of(NODES), GAP_S if LONG else SHORT_GAP_S)
    findings = run_cluster(SECONDS, seed, faults=faults, nodes=NODES)
    assert findings.passed, f"FAULTS_SEED={seed}\n{capsys.readouterr().out}\n{summary(findings)}"
    assert findings.answers["cache/fresh"] > 0
    assert findings.available.reads > 0
