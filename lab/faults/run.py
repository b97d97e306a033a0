"""One run with faults: starts everything, drives traffic, injects a seeded schedule of faults, recovers, and judges.

A run passes if no answer was wrong, every sampled key is served from the cache after the last fault and one read, the
Spark rebuild equals the live state byte for byte, the recorded history of rows breaks no rule (`lab.blackbox`), no
process exited unexpectedly, and no log has a traceback.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pymysql
import structlog

from consumers.owner.client import OwnerConnection
from consumers.owner.protocol import OwnerError
from lab.blackbox.judging import judge, read_history
from lab.blackbox.recording import Recorder
from lab.demo.catalog_traffic import CatalogDriver, connection_settings
from lab.demo.readers import Readers
from lab.demo.row_traffic import RowTraffic, create_tables
from lab.demo.run import recover
from lab.demo.stack import CATALOG, CATALOG_DATABASE, ROWS, Stack
from lab.demo.summary import Findings
from lab.demo.verdict import rebuild_and_verify
from lab.faults.disk import FailingDisk, disk_for
from lab.faults.injector import Injector, UnexpectedExit
from lab.faults.network import Network
from lab.faults.rig import FaultyStack
from lab.faults.schedule import Fault, schedule
from lab.faults.wall_clock import WallClocks
from lab.workload.catalog import WorkloadCatalog
from serving.client import FreshetClient
from stream.kafka.locations import LocationsReader
from tokens import Position
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

KEYS: Final = 300
WRITERS, WRITER_PAUSE_S = 3, 0.06
FOLLOWERS, DEMANDERS, UNDEMANDING, READER_PAUSE_S = 2, 2, 1, 0.04
DDL_EVERY_S: Final = 20.0
TICK_S: Final = 0.5
CATCH_UP_S: Final = 300.0
RECOVER_S: Final = 120.0

REFUSALS: Final = frozenset(
    {
        "no_owner",
        "not_ready",
        "source_behind",
        "source_failed",
        "source_unreachable",
        "stopping",
        "table_id_changed",
        "too_many_requests",
        "unknown_shard",
        "unreachable",
        "write_not_tracked",
    }
)
"""Error codes that a reader may get while something is down. Any other code fails the run."""


@dataclass
class FaultFindings(Findings):
    """The demo's findings, and those about the faults. ``in_doubt``: commits that took place but got no answer."""

    seed: int = 0
    disk: str = ""
    clocks: str = ""
    faults: Counter[str] = field(default_factory=Counter)
    ended: list[UnexpectedExit] = field(default_factory=list)
    in_doubt: int = 0
    catalog_recovered: tuple[int, int] = (0, 0)
    caught_up_s: float = 0.0
    recorded: tuple[int, int] = (0, 0)
    """Commits and reads of rows in the recorded history."""

    @property
    def passed(self) -> bool:
        """As `Findings.passed`; also the catalog must have recovered, and a fault must have been injected."""
        recovered, tried = self.catalog_recovered
        return super().passed and recovered == tried > 0 and sum(self.faults.values()) > 0

    def as_json(self) -> dict[str, Any]:
        """The findings as JSON values."""
        return super().as_json() | {
            "passed": self.passed,
            "seed": self.seed,
            "disk": self.disk,
            "wall_clocks": self.clocks,
            "faults": dict(sorted(self.faults.items())),
            "ended_by_itself": [f"{each.role} during {', '.join(each.during)}" for each in self.ended],
            "commits_in_doubt": self.in_doubt,
            "catalog_recovered": list(self.catalog_recovered),
            "caught_up_s": round(self.caught_up_s, 1),
            "recorded": {"commits": self.recorded[0], "reads": self.recorded[1]},
        }


def run_faults(
    seconds: float,
    seed: int,
    say: Callable[[str], None] = print,
    *,
    faults: Sequence[Fault] | None = None,
    consumers: int = 1,
    directory: Path | None = None,
) -> FaultFindings:
    """Runs ``seconds`` of traffic and faults, then judges. Stops everything that it starts.

    ``faults``: instead of the schedule of ``seed``. ``consumers``: 1 or 2. ``directory``: where to work and leave the
    logs; None: a temporary one.
    """
    chosen = schedule(seed, seconds) if faults is None else faults
    findings = FaultFindings(started_s=time.monotonic(), seed=seed)
    with contextlib.ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="freshet-faults-")))
        directory.mkdir(parents=True, exist_ok=True)
        disk = disk_for(directory / "disk")
        stack.enter_context(disk)
        findings.disk = disk.kind
        network = stack.enter_context(Network())
        clocks = WallClocks(directory / "clocks") if any(each.target == "wall-clock" for each in chosen) else None
        findings.clocks = "none steps" if clocks is None else clocks.missing or "step by libfaketime"
        rig = FaultyStack(directory, network, disk.directory, consumers=consumers, clocks=clocks)
        say(f"seed {seed}: starting Kafka, MariaDB and our processes in {directory}; the stores' disk is {disk.kind}")
        say(f"wall clocks of our processes: {findings.clocks}")
        stack.enter_context(rig)
        _start(rig, findings)
        recorder = stack.enter_context(Recorder(directory / "history.jsonl"))
        traffic = RowTraffic(lambda: rig.connect_as_writer(ROWS), ROWS, KEYS, seed, reconnect=True, recorder=recorder)
        injector = Injector(rig, disk, traffic, seed, say)
        stack.callback(injector.close)
        try:
            _drive(rig, traffic, injector, findings, seconds, chosen)
            _judge(rig, traffic, findings, seed)
            say("caught up and judged; Spark rebuilds both keyspaces from their topics …")
            findings.rebuilds = rebuild_and_verify(rig)
        except FreshetError as error:
            findings.errors.append(f"{error.code}: {error}")
        finally:
            injector.close()
            check_processes(rig, injector, findings)
            if isinstance(disk, FailingDisk):
                findings.disk += f"; {disk.failed} operations failed with EIO"
            judge_recording(recorder, findings, say)
    return findings


def judge_recording(recorder: Recorder, findings: FaultFindings, say: Callable[[str], None]) -> None:
    """Judges what the clients saw, offline. Keeps the recording of a run that did not pass, and says where."""
    recorder.close()
    with recorder.path.open(encoding="utf-8") as lines:
        history = read_history(lines)
    complaints = judge(history)
    findings.recorded = len(history.commits), len(history.reads)
    findings.wrong += [f"line {each.line} of the recording: {each.rule}: {each.what}" for each in complaints]
    if not findings.passed:
        kept = Path(tempfile.gettempdir()) / f"freshet-history-{findings.seed}.jsonl"
        shutil.copyfile(recorder.path, kept)
        say(f"the recorded history is kept; to judge it again: python -m lab.blackbox {kept}")


def _start(stack: Stack, findings: FaultFindings) -> None:
    with stack.connect(ROWS) as connection:
        create_tables(connection)
    CatalogDriver.prepare(stack)
    stack.start_roles()
    findings.ready_s = time.monotonic() - findings.started_s


def _drive(
    stack: FaultyStack,
    traffic: RowTraffic,
    injector: Injector,
    findings: FaultFindings,
    seconds: float,
    faults: Sequence[Fault],
) -> None:
    """Traffic and faults for ``seconds``; afterwards everything is whole, quiet and has caught up."""
    readers = Readers(stack, traffic, KEYS, findings.seed, reconnect=True)
    catalog = CatalogDriver(stack, findings.seed, reconnect=True)
    traffic.start(WRITERS, WRITER_PAUSE_S)
    readers.start(FOLLOWERS, DEMANDERS, UNDEMANDING, READER_PAUSE_S)
    catalog.start()
    altered, next_ddl = 0, DDL_EVERY_S / 2
    try:
        readers.wait_for_fresh_answer()
        began = time.monotonic()
        injector.start(faults)
        while findings.traffic_s < seconds:
            time.sleep(TICK_S)
            findings.traffic_s = time.monotonic() - began
            if findings.traffic_s > next_ddl:
                next_ddl += DDL_EVERY_S
                with contextlib.suppress(pymysql.Error, OSError), stack.connect(ROWS) as connection:
                    traffic.alter(connection, altered)
                    altered += 1
    finally:
        injector.finish()
        readers.stop()
        catalog.stop()
        traffic.stop()
    with stack.connect(ROWS) as connection:
        findings.in_doubt = traffic.resolve(connection)
    findings.caught_up_s = wait_caught_up(stack)
    stack.wait_ready()  # the API may still be starting after the last fault
    findings.transactions, findings.rolled_back, findings.row_changes = (
        traffic.committed,
        traffic.rolled_back,
        traffic.rows,
    )
    findings.catalog_commits = catalog.commits
    findings.answers, findings.catalog_answers = readers.counts.copy(), catalog.counts.copy()
    findings.refused = readers.refused + catalog.refused
    findings.errors += traffic.errors + readers.errors + catalog.errors
    findings.errors += [
        f"{count} readers were refused with {code}" for code, count in findings.refused.items() if code not in REFUSALS
    ]
    if readers.unexplained:
        findings.errors.append(f"{readers.unexplained} answers did not say why")
    findings.wrong += [traffic.history.expected(answer) for answer in readers.wrong()] + catalog.wrong()


def _judge(stack: Stack, traffic: RowTraffic, findings: FaultFindings, seed: int) -> None:
    findings.recovered = recover(stack, traffic, findings, seed)
    findings.catalog_recovered = recover_catalog(stack, findings)


def wait_caught_up(stack: Stack, timeout_s: float = CATCH_UP_S, *, has_catalog: bool = True) -> float:
    """Waits until every watermark has reached its source's position. Returns the seconds it took.

    Raises `OwnerError` ``not_recovered`` after ``timeout_s``.
    """
    with stack.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@gtid_binlog_pos")
        [at] = cursor.fetchone() or [""]
    wanted = {ROWS: Position.parse(f"MariaDB/{at}")}
    if has_catalog:
        with WorkloadCatalog(connection_settings(stack), CATALOG_DATABASE) as truth:
            wanted[CATALOG] = Position.parse(truth.position()[0])
    began = time.monotonic()
    behind: list[str] = ["no owner was asked yet"]
    while time.monotonic() - began < timeout_s:
        try:
            behind = _behind(stack, wanted)
        except FreshetError as error:
            behind = [str(error)]
        if not behind:
            return time.monotonic() - began
        time.sleep(0.3)
    raise OwnerError(
        f"not caught up {timeout_s:.0f} s after the last fault: {'; '.join(behind)}",
        hint="look at the logs of the source and the consumer",
        code="not_recovered",
    )


def _behind(stack: Stack, wanted: dict[str, Position]) -> list[str]:
    """One line for each partition whose watermark is not at or past ``wanted`` (keyspace → position)."""
    partitions = {ROWS: stack.partitions, CATALOG: 2}
    behind: list[str] = []
    with LocationsReader(stack.kafka.cluster) as locations:
        for keyspace, position in wanted.items():
            shard = f"{keyspace}/0"
            reached: dict[int, Position] = {}
            for address in {owner.address for owner in locations.owners(keyspace).values()}:
                with OwnerConnection(address, timeout_s=3) as owner:
                    for each in owner.status(keyspace).partitions:
                        marks = [mark.watermark for mark in each.shards if mark.shard == shard and mark.watermark]
                        reached.update((each.partition, Position.parse(mark)) for mark in marks)
            behind += [
                f"{keyspace}/{number} is at {reached.get(number, 'no watermark')}, wanted {position}"
                for number in range(partitions[keyspace])
                if number not in reached or not reached[number].contains(position)
            ]
    return behind


def recover_catalog(stack: Stack, findings: Findings) -> tuple[int, int]:
    """Reads each table after the last fault. Returns (tables that the cache serves after one read, tables)."""
    served = 0
    with WorkloadCatalog(connection_settings(stack), CATALOG_DATABASE) as truth, FreshetClient(stack.url) as client:
        tables = truth.tables()
        deadline = time.monotonic() + RECOVER_S
        for name, table_id, kind in tables:
            demanded = truth.valid_write_ids(name) if kind == "transactional" else None
            db, _, short = name.partition(".")
            session = client.session()
            session.observe(f"{CATALOG}/0", truth.position()[0])
            session.get_table(db, short, demanded, table_id, catalog=CATALOG, max_wait_ms=5000)
            while True:
                table = session.get_table(db, short, demanded, table_id, catalog=CATALOG, max_wait_ms=5000)
                if table.served_from == "cache" or time.monotonic() > deadline:
                    break
            served += table.served_from == "cache"
            found = truth.read_table(db, short)
            if found is None or table.value != json.loads(found.image):
                findings.wrong.append(f"{name} is {table.value} after the last fault, expected {found} ({table.why})")
    return served, len(tables)


def check_processes(stack: Stack, injector: Injector, findings: FaultFindings) -> None:
    """Adds to the findings what the processes' exits and logs show."""
    findings.faults, findings.ended = injector.met, injector.ended
    findings.errors += injector.errors
    findings.errors += [
        f"{each.role} exited unexpectedly during {', '.join(each.during) or 'no fault'}:\n{each.tail}"
        for each in injector.ended
        if not each.is_clean
    ]
    for role in stack.roles:
        findings.errors += [f"{role}: {line}" for line in tracebacks(stack.directory / f"{role}.log")]


def tracebacks(log_file: Path) -> list[str]:
    """The lines of a log that hold a traceback or an exception, each cut to 2,000 characters."""
    if not log_file.exists():
        return []
    lines = log_file.read_text(errors="replace").splitlines()
    return [line[:2_000] for line in lines if "Traceback (most recent call last)" in line or '"exception"' in line]
