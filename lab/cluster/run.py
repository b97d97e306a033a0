"""One run of a cluster: starts everything, drives traffic, injects a seeded schedule, recovers, and judges.

With a kept version all processes begin with that, and are replaced one after the other, the source last.

A run passes if the recorded history breaks no rule (`lab.blackbox`), all but `UNANSWERED_MAX` of the reads that no
fault excuses were answered, no time longer than ``silent_s_max`` passed without a fresh answer, every sampled key is
served from the cache at the end, no drain failed, no process exited unexpectedly, and no log has a traceback.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lab.blackbox.availability import NONE, Availability, availability, interruptions
from lab.blackbox.judging import read_history
from lab.blackbox.recording import Recorder
from lab.cluster.injector import ClusterInjector
from lab.cluster.kept import kept_version
from lab.cluster.rig import ClusterStack
from lab.demo.readers import Readers
from lab.demo.row_traffic import RowTraffic, create_tables
from lab.demo.run import recover
from lab.demo.stack import ROWS
from lab.faults.disk import disk_for
from lab.faults.network import Network
from lab.faults.run import REFUSALS, FaultFindings, check_processes, judge_recording, wait_caught_up
from lab.faults.schedule import Fault
from tokens.errors import FreshetError

KEYS: Final = 300
WRITERS, WRITER_PAUSE_S = 2, 0.1
SESSIONS, DEMANDERS, UNDEMANDING, READER_PAUSE_S = 5, 2, 1, 0.05
UNANSWERED_MAX: Final = 0.001
SILENT_S_MAX: Final = 2.0
"""Seconds in which no client got a fresh answer, while no fault excused it."""
TICK_S: Final = 0.2


@dataclass
class ClusterFindings(FaultFindings):
    """The findings of a run with faults, and those about the clients of several nodes."""

    nodes: int = 0
    silent_s_max: float = SILENT_S_MAX
    available: Availability = NONE
    kills: list[tuple[str, float, float]] = field(default_factory=list)
    """Of each node that was killed: until when reads were refused after it, and the longest answer, in seconds."""

    @property
    def passed(self) -> bool:
        """No wrong answer, no error, everything recovered, and reads were answered."""
        recovered, tried = self.recovered
        return (
            not self.wrong
            and not self.errors
            and recovered == tried > 0
            and sum(self.faults.values()) > 0
            and self.available.share >= 1 - UNANSWERED_MAX
            and self.available.silent_s <= self.silent_s_max
        )

    def as_json(self) -> dict[str, Any]:
        """The findings as JSON values."""
        kills = [
            {"node": name, "refused_s": round(refused_s, 3), "slowest_s": round(slowest_s, 3)}
            for name, refused_s, slowest_s in self.kills
        ]
        return super().as_json() | {
            "nodes": self.nodes,
            "calm_reads": self.available.reads,
            "unanswered": self.available.unanswered,
            "slowest_s": round(self.available.slowest_s, 3),
            "silent_s": round(self.available.silent_s, 3),
            "kills": kills,
        }


def run_cluster(
    seconds: float,
    seed: int,
    say: Callable[[str], None] = print,
    *,
    faults: Sequence[Fault],
    nodes: int,
    silent_s_max: float = SILENT_S_MAX,
    directory: Path | None = None,
) -> ClusterFindings:
    """Runs ``seconds`` of traffic and ``faults``, then judges. Stops everything that it starts.

    ``nodes``: how many run, of which one is a follower. ``silent_s_max``: how long no client may be without a fresh
    answer, in seconds. ``directory``: where to work and leave the logs; None: a temporary one.
    """
    findings = ClusterFindings(started_s=time.monotonic(), seed=seed, nodes=nodes, silent_s_max=silent_s_max)
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="freshet-cluster-")))
        directory.mkdir(parents=True, exist_ok=True)
        disk = disk_for(directory / "disk")
        stack.enter_context(disk)
        findings.disk = disk.kind
        kept = kept_version(directory / "kept") if any(each.kind == "upgrade" for each in faults) else None
        rig = ClusterStack(directory, stack.enter_context(Network()), nodes, disk.directory, kept)
        say(f"seed {seed}: starting Kafka, MariaDB, a source and {nodes} nodes in {directory}; a disk is {disk.kind}")
        say("all begin with the kept version" if kept is not None else "all are of this version")
        stack.enter_context(rig)
        with rig.connect(ROWS) as connection:
            create_tables(connection)
        rig.start_roles()
        findings.ready_s = time.monotonic() - findings.started_s
        say(f"ready after {findings.ready_s:.1f} s")
        recorder = stack.enter_context(Recorder(directory / "history.jsonl"))
        traffic = RowTraffic(lambda: rig.connect_as_writer(ROWS), ROWS, KEYS, seed, recorder=recorder)
        injector = ClusterInjector(rig, disk, traffic, recorder, seed, say)
        stack.callback(injector.close)
        try:
            _drive(rig, traffic, injector, findings, seconds, faults)
            findings.errors += [f"{role} was not upgraded" for role in sorted(rig.old)]
            findings.caught_up_s = wait_caught_up(rig, has_catalog=False)
            rig.wait_ready()
            findings.recovered = recover(rig, traffic, findings, seed)
        except FreshetError as error:
            findings.errors.append(f"{error.code}: {error}")
        finally:
            injector.close()
            check_processes(rig, injector, findings)
            with recorder.path.open(encoding="utf-8") as lines:
                history = read_history(lines)
            findings.available, findings.kills = availability(history), interruptions(history, "kill")
            judge_recording(recorder, findings, say)
    return findings


def _drive(
    rig: ClusterStack,
    traffic: RowTraffic,
    injector: ClusterInjector,
    findings: ClusterFindings,
    seconds: float,
    faults: Sequence[Fault],
) -> None:
    """Traffic and faults for ``seconds``; afterwards everything runs and is quiet."""
    readers = Readers(rig, traffic, KEYS, findings.seed)
    traffic.start(WRITERS, WRITER_PAUSE_S)
    readers.start(SESSIONS, DEMANDERS, UNDEMANDING, READER_PAUSE_S)
    try:
        readers.wait_for_fresh_answer()
        began = time.monotonic()
        injector.start(faults)
        while findings.traffic_s < seconds:
            time.sleep(TICK_S)
            findings.traffic_s = time.monotonic() - began
    finally:
        injector.finish()
        readers.stop()
        traffic.stop()
    findings.transactions, findings.rolled_back, findings.row_changes = (
        traffic.committed,
        traffic.rolled_back,
        traffic.rows,
    )
    findings.answers, findings.refused = readers.counts.copy(), readers.refused.copy()
    findings.errors += traffic.errors + readers.errors
    findings.errors += [
        f"{count} readers were refused with {code}" for code, count in findings.refused.items() if code not in REFUSALS
    ]
    findings.wrong += [traffic.history.expected(answer) for answer in readers.wrong()]
