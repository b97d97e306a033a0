"""Workers: processes of one group under one supervisor, on a real Kafka."""

from __future__ import annotations

import errno
import faulthandler
import os
import pickle
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from multiprocessing import resource_tracker, util
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from consumers import workers
from consumers.process.loop import ConsumptionSettings
from consumers.process.run import OwnerSettings
from consumers.snapshots.restoring import Snapshots
from consumers.workers import run_workers, worker_settings
from stream.access.grants import Access
from stream.kafka.connection import KafkaCluster
from tests.consumers.consuming import ConsumeProcess, Feed, caught_up, digest_of, expected, until
from tests.patience import PATIENCE_S


def shown(process: ConsumeProcess, path: str) -> tuple[int, str]:
    """Status and text of the supervisor's port."""
    [line] = until(lambda: process.lines("metrics"), "the supervisor's port")
    try:
        with urllib.request.urlopen(f"http://{line['address']}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def workers_of(process: ConsumeProcess) -> dict[int, int]:
    """Worker → its process id, of the last that was started."""
    return {each["worker"]: each["pid"] for each in process.lines("worker started")}


def addresses(process: ConsumeProcess) -> set[str]:
    """Where workers answer that are ready."""
    return {each["address"] for each in process.lines("ready")}


def partitions_in(metrics: str) -> set[str]:
    """(worker, partition) of the consumer's metrics that say that it is ready."""
    return {
        line for line in metrics.splitlines() if line.startswith("freshet_consumer_ready{") and line.endswith(" 1.0")
    }


def two_workers(kafka: KafkaCluster, keyspace: str, tmp_path: Path, **more: str) -> ConsumeProcess:
    """``freshet consume --workers 2``, as a setting."""
    settings: dict[str, Any] = {"FRESHET_CONSUMER__WORKERS": "2", "FRESHET_CONSUMER__METRICS_PORT": "0"}
    return ConsumeProcess(kafka, keyspace, tmp_path / "data", log_dir=tmp_path, **settings, **more)


def test_workers_share_the_partitions_and_a_killed_one_comes_back(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """Each folds its part; one port shows all; a kill -9 loses nothing; SIGTERM ends all in order."""
    feed = Feed(kafka, keyspace_name)
    feed.load(100)
    with two_workers(kafka, keyspace_name, tmp_path) as process:
        until(lambda: len(addresses(process)) == 2, "two workers are ready")
        until(lambda: shown(process, "/readyz")[0] == 200, "the supervisor says so")
        # Who hands a partition over has it, too, until the other one is announced.
        until(lambda: len(partitions_in(shown(process, "/metrics")[1])) == 2, "each partition is in one of them")
        metrics = shown(process, "/metrics")[1]
        assert {f'freshet_consumer_worker_up{{worker="{number}"}} 1.0' for number in (0, 1)} <= set(
            metrics.splitlines()
        )
        before = workers_of(process)
        os.kill(before[1], signal.SIGKILL)
        until(lambda: process.lines("worker died, starting it again"), "its end is seen")
        feed.load(100)
        until(lambda: workers_of(process)[1] != before[1], "it is started again")
        until(lambda: shown(process, "/readyz")[0] == 200, "all partitions are ready again")
        assert workers_of(process)[0] == before[0]
        until(lambda: all(caught_up(kafka, keyspace_name, each) for each in addresses(process)), "caught up")
        running = workers_of(process)
        assert process.terminate() == 0
    assert not any(map(psutil.pid_exists, running.values()))
    places = [tmp_path / "data", tmp_path / "data" / ".worker-1"]
    digests = {
        digest_of(each, keyspace_name, number)
        for number in range(2)
        for each in places
        if (each / keyspace_name / str(number)).exists()
    }
    assert {expected(kafka, feed.topic, number, tmp_path / "scratch") for number in range(2)} <= digests


def test_an_error_that_waiting_cannot_help_ends_all(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """As it ends a single process: with its code, and nobody left behind."""
    Feed(kafka, keyspace_name).flush()
    with two_workers(kafka, keyspace_name, tmp_path) as first:
        first.ready()
        with two_workers(kafka, keyspace_name, tmp_path) as second:
            assert second.process.wait(PATIENCE_S) == 1
            assert any("error[store_locked]" in line["event"] for line in second.lines())
            until(lambda: not any(map(psutil.pid_exists, workers_of(second).values())), "its workers have ended")
        assert first.process.poll() is None


def test_workers_end_when_their_supervisor_is_killed(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """Else they would hold the data directories, and nobody would stop them."""
    Feed(kafka, keyspace_name).flush()
    with two_workers(kafka, keyspace_name, tmp_path) as process:
        process.ready()
        running = workers_of(process)
        process.kill()
    until(lambda: not any(map(psutil.pid_exists, running.values())), "no worker is left")


def test_workers_have_places_ports_and_memory_of_their_own(tmp_path: Path) -> None:
    """The first one keeps the place that a single process has.

    Each shares memory for fills out by the topic's partitions, and has some of these: all have what one process has.
    """
    consume = ConsumptionSettings(
        kafka=KafkaCluster("127.0.0.1:1"),
        keyspaces=("k",),
        data_dir=tmp_path,
        overlay_bytes=1_000,
        hot={"k": {"d.t": 400}},
    )
    owner = OwnerSettings("0.0.0.0", 7_000, Access.of_secret("secret"), 9_100, "outside:8_000".replace("_", ""))
    made = [worker_settings(number, consume, owner) for number in range(4)]
    assert [each.data_dir for each, _ in made] == [tmp_path, *(tmp_path / f".worker-{number}" for number in (1, 2, 3))]
    assert {each.checkpoints for each, _ in made} == {tmp_path / "checkpoints"}, "a backup has all partitions"
    assert {each.overlay_bytes for each, _ in made} == {consume.overlay_bytes}
    assert [each.hot for each, _ in made] == [consume.hot] * 4
    assert [(each.port, each.announced) for _, each in made] == [(7_000 + n, f"outside:{8_000 + n}") for n in range(4)]
    assert {(each.metrics_host, each.metrics_port) for _, each in made} == {("127.0.0.1", 0)}
    free = [worker_settings(number, consume, OwnerSettings())[1] for number in range(2)]
    assert [(each.port, each.announced, each.metrics_port) for each in free] == [(0, "", None)] * 2


def test_settings_reach_a_workers_process(tmp_path: Path) -> None:
    """They are pickled for it: a lock in them would keep every worker from starting."""
    consume = ConsumptionSettings(
        kafka=KafkaCluster("127.0.0.1:1"), keyspaces=("k",), data_dir=tmp_path, snapshots=Snapshots({"k": "file:///s"})
    )
    found = pickle.loads(pickle.dumps(worker_settings(1, consume, OwnerSettings())))
    assert found[0].snapshots.places == {"k": "file:///s"}


def tell_and_end_all(consume: ConsumptionSettings, *_: object) -> None:
    """What two workers do in place of consuming: the second one that begins ends their supervisor."""
    (consume.data_dir.parent / f"begun-{os.getpid()}").touch()
    if len([*consume.data_dir.parent.glob("begun-*")]) == 2:
        os.kill(os.getppid(), signal.SIGTERM)


def test_a_worker_that_cannot_be_started_is_started_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of memory, processes or open files. Before, its supervisor ended, and with it all others."""
    consume = ConsumptionSettings(kafka=KafkaCluster("127.0.0.1:1"), keyspaces=("k",), data_dir=tmp_path / "data")
    resource_tracker.ensure_running()
    errors = [OSError(errno.EAGAIN, "no process"), OSError(errno.ENOMEM, "no memory")]
    start = util.spawnv_passfds

    def start_if_possible(*arguments: Any) -> int:
        if errors:
            raise errors.pop()
        return start(*arguments)

    monkeypatch.setattr(util, "spawnv_passfds", start_if_possible)
    monkeypatch.setattr(workers, "_work", tell_and_end_all)
    monkeypatch.setattr(workers, "worker_settings", lambda *_: (consume, OwnerSettings()))
    with capture_logs() as lines:
        run_workers(2, consume, OwnerSettings(), faulthandler.enable)
    failed = [(each["worker"], each["code"], each["in_s"]) for each in lines if "reason" in each]
    assert failed == [(0, "worker_not_started", 1.0), (1, "worker_not_started", 1.0)]
    assert {each["worker"] for each in lines if each["event"] == "worker started"} == {0, 1}


@pytest.mark.parametrize("after_s", [0.1, 0.5])
def test_an_interrupt_while_workers_are_imported_ends_in_order(tmp_path: Path, after_s: float) -> None:
    """Ctrl-C goes to all processes of the terminal. They import half a second long, and told of it with tracebacks."""
    with (tmp_path / "log").open("wb") as log:
        command = [sys.executable, "-m", "freshet", "--log-format", "json", "consume", "--keyspace", "k", "--workers"]
        process = subprocess.Popen(
            [*command, "2", "--data-dir", str(tmp_path / "data"), "--bootstrap", "127.0.0.1:1"],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    shown = (tmp_path / "log").read_text
    until(lambda: shown().count("worker started") == 2, "the workers are started")
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    assert [line for line in shown().splitlines() if not line.startswith("{")] == []
    assert '"stopped"' in shown()


def test_no_signal_is_lost_while_the_supervisor_begins_to_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes between its two steps ends it like any other."""
    consume = ConsumptionSettings(kafka=KafkaCluster("127.0.0.1:1"), keyspaces=("k",), data_dir=tmp_path)
    heard: list[int] = []
    listen = signal.set_wakeup_fd

    def listen_late(fd: int) -> int:
        if fd >= 0:
            signal.raise_signal(signal.SIGTERM)
        before = listen(fd)
        if fd >= 0:  # so that it ends either way
            os.write(fd, bytes([signal.SIGTERM]))
        return before

    monkeypatch.setattr(signal, "set_wakeup_fd", listen_late)
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        run_workers(0, consume, OwnerSettings())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
