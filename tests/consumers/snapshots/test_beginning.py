"""Where a store is missing, damaged or can't be continued, it begins with a snapshot of the right history."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import fsspec
import pytest
from structlog.testing import capture_logs

from consumers.fold.state import FOLD_VERSION
from consumers.owner.partitions import CATCHING_UP, REBUILDING, Partition
from consumers.process import restoring
from consumers.process.opening import open_partition
from consumers.process.restoring import BackgroundRestores, StillRestoring
from consumers.snapshots import patience
from consumers.snapshots.errors import PlaceAwayError, SnapshotError
from consumers.snapshots.patience import SILENT_S
from consumers.snapshots.places import Place
from consumers.snapshots.restoring import Snapshots
from consumers.store.errors import DiskFullError, RebuildNeededError, ResourcesError, StoreError
from consumers.store.store import StoreView
from tests.consumers.consuming import until
from tests.consumers.snapshots.made import TOPIC, fold, snapshot_of
from tests.data_at_rest.history import KEYSPACE, messages
from tests.data_at_rest.test_kept_stores import rewrite
from tests.patience import PATIENCE_S

END = len(messages())
AT = 60
"""Where the snapshot of these tests ends."""


def opened(data_dir: Path, place: Path, start: int = 0) -> Partition:
    """The partition, opened as at an assignment; the topic's first offset is ``start``."""
    snapshots = Snapshots({KEYSPACE: str(place)})
    return open_partition(data_dir, KEYSPACE, 0, TOPIC, (start, END), 1 << 20, snapshots=snapshots)


def offset_of(partition: Partition) -> int:
    """Its offset; closes its store, whose digest must be that of the log's prefix."""
    offset = partition.store.state.head.offset
    partition.store.close(commit=False)
    return offset


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a snapshot at `AT` is."""
    snapshot_of(tmp_path / "scratch", Place(str(tmp_path / "snapshots")), AT)
    return tmp_path / "snapshots"


def test_a_new_store_begins_with_the_snapshot(tmp_path: Path, place: Path) -> None:
    """It goes on at the snapshot's offset, to the state of the whole log."""
    partition = opened(tmp_path / "data", place)
    assert (partition.store.state.head.offset, partition.state) == (AT, CATCHING_UP)
    partition.store.close()
    whole, gone_on = fold(tmp_path / "whole"), fold(tmp_path / "data")
    assert whole.digest() == gone_on.digest()
    whole.close()
    gone_on.close()


def test_a_store_that_can_go_on_is_left_alone(tmp_path: Path, place: Path) -> None:
    """A snapshot that is ahead of a good store does not replace it."""
    fold(tmp_path / "data", 30).close()
    assert offset_of(opened(tmp_path / "data", place)) == 30


def in_background(
    data_dir: Path, place: Path, start: int, given: BackgroundRestores | None = None
) -> tuple[Partition, StoreError | None]:
    """As `opened`, by calls that don't wait for the snapshot; also why the partition's store was set aside before."""
    restores = given or BackgroundRestores(Snapshots({KEYSPACE: str(place)}))
    why: StoreError | None = None

    def made() -> Partition | None:
        nonlocal why
        try:
            return open_partition(data_dir, KEYSPACE, 0, TOPIC, (start, END), 0, snapshots=restores, rebuilt=why)
        except StillRestoring as waiting:
            why = waiting.why or why
            return None

    found: Partition = until(made, "the store is made")
    if given is None:
        restores.close()
    return found, why


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("why", ["damaged", "fold_changed", "topic_changed", "vanished", "behind", "cut"])
def test_a_store_that_can_not_go_on_is_replaced_from_the_snapshot(
    tmp_path: Path, place: Path, why: str, background: bool
) -> None:
    """Each reason to begin anew leads to the snapshot, and the old store is set aside as without snapshots."""
    data, start = tmp_path / "data", 0
    fold(data, 30).close()
    directory = data / KEYSPACE / "0"
    if why == "damaged":
        (directory / "manifest.json").write_bytes(b"{}")
    elif why == "fold_changed":
        rewrite(directory / "manifest.json", fold_version=FOLD_VERSION - 1)
    elif why == "topic_changed":
        rewrite(directory / "manifest.json", topic_id="another")
    elif why == "vanished":
        shutil.rmtree(directory)
    elif why == "behind":
        start = 40
    else:
        shutil.rmtree(directory)
        start = 40
    kept = why in ("vanished", "cut")
    if background:
        partition, aside = in_background(data, place, start)
        assert (aside is None) is kept
    else:
        partition = opened(data, place, start)
    assert partition.state == (CATCHING_UP if kept else REBUILDING)
    assert bool(list((data / KEYSPACE).glob("0.*-1"))) is not kept
    assert partition.store.state.head.begin == 0, "it knows what was before the cut"
    assert offset_of(partition) == AT


def test_a_store_that_is_lost_after_its_restore_is_made_from_a_snapshot_again(tmp_path: Path, place: Path) -> None:
    """The partition was taken away while its store was made, so nobody asked for the outcome: it is old by now."""
    restores = BackgroundRestores(Snapshots({KEYSPACE: str(place)}))
    data, wanted = tmp_path / "data", (KEYSPACE, 0)
    for opened_since in (True, False):
        with pytest.raises(StillRestoring):
            restores.restore(data, KEYSPACE, 0, TOPIC, (0, END))
        until(lambda: not restores.is_running(wanted), "the store is made")
        if opened_since:
            restores.forget(wanted)
            shutil.rmtree(data)
    assert restores.restore(data, KEYSPACE, 0, TOPIC, (0, END))
    assert (data / KEYSPACE / "0" / "manifest.json").exists()
    restores.close()


@pytest.mark.parametrize("end", [END, AT + 5])
def test_a_log_that_has_lost_its_end_is_folded_anew(tmp_path: Path, place: Path, end: int) -> None:
    """Whether it was filled again or not: the snapshot may hold events that are gone."""
    fold(tmp_path / "data").close()
    lost = RebuildNeededError("Kafka has lost its tail", code="log_truncated") if end == END else None
    snapshots = Snapshots({KEYSPACE: str(place)})
    partition = open_partition(tmp_path / "data", KEYSPACE, 0, TOPIC, (0, end), 0, lost, snapshots=snapshots)
    assert partition.state == REBUILDING
    assert offset_of(partition) == 0


@pytest.mark.parametrize("start", [29, 30, 31])
def test_who_was_overtaken_by_retention_while_it_was_read_begins_with_the_snapshot(
    tmp_path: Path, place: Path, start: int
) -> None:
    """Kafka reports it as it does a log that has lost its end; nothing that a snapshot holds is gone."""
    fold(tmp_path / "data", 30).close()
    lost = RebuildNeededError("the topic does not have this offset", code="log_truncated")
    snapshots = Snapshots({KEYSPACE: str(place)})
    partition = open_partition(tmp_path / "data", KEYSPACE, 0, TOPIC, (start, END), 0, lost, snapshots=snapshots)
    assert partition.state == REBUILDING
    assert offset_of(partition) == (AT if start > 30 else start)


def test_a_store_in_which_nothing_was_folded_counts_as_missing(tmp_path: Path, place: Path) -> None:
    """A process that was started once without snapshots is not bound to fold everything."""
    fold(tmp_path / "data", 0).close()
    assert offset_of(opened(tmp_path / "data", place)) == AT


def test_the_farthest_snapshot_wins_and_a_damaged_one_gives_way_to_the_next(tmp_path: Path, place: Path) -> None:
    """Each refusal is logged with its code, and the partition is never without a store."""
    farther, _ = snapshot_of(tmp_path / "scratch", Place(str(place)), AT + 10)
    assert offset_of(opened(tmp_path / "one", place)) == AT + 10
    file = place / KEYSPACE / farther.name / "0" / "000001.sst"
    file.write_bytes(file.read_bytes()[:-1])
    with capture_logs() as logs:
        assert offset_of(opened(tmp_path / "two", place)) == AT
    assert [each["code"] for each in logs if each["event"] == "a snapshot is not used"] == ["snapshot_damaged"]


@contextmanager
def no_file_over(size: int) -> Iterator[None]:
    """The disk takes no larger one, of this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("where", ["memory://full/{}", "file://{}/snapshots"])
def test_a_disk_that_is_full_while_a_snapshot_is_copied_is_waited_for(
    tmp_path: Path, where: str, background: bool
) -> None:
    """The topic no longer has what the snapshot has: folded from there, the store would lack it for good."""
    where = where.format(tmp_path)
    snapshot_of(tmp_path / "scratch", Place(where), AT)
    snapshots = Snapshots({KEYSPACE: where})
    restores = BackgroundRestores(snapshots) if background else snapshots

    def made() -> Partition | None:
        try:
            return open_partition(tmp_path / "data", KEYSPACE, 0, TOPIC, (AT - 10, END), 0, snapshots=restores)
        except StillRestoring:
            return None

    with no_file_over(1_000), capture_logs(), pytest.raises(DiskFullError):
        until(made, "the store is made")
    assert not list((tmp_path / "data").glob("*/*"))
    assert offset_of(until(made, "the store is made")) == AT


def test_a_copy_that_will_not_fit_is_not_begun(tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gigabytes would be copied again at each attempt, and the disk be full for everybody else meanwhile."""
    asked: list[object] = []
    with monkeypatch.context() as trouble:
        trouble.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=1 << 30, free=1_000))
        trouble.setattr(Place, "get", lambda *_: asked.append(1))
        with pytest.raises(DiskFullError, match="1000 are free"):
            opened(tmp_path / "data", place, AT - 10)
    assert not asked
    assert offset_of(opened(tmp_path / "data", place, AT - 10)) == AT


@pytest.mark.parametrize("method", ["get", "read", "names"])
def test_a_process_without_file_handles_does_not_give_its_snapshots_up(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """There are some again a moment later, and what the topic lacks is still in the snapshot."""

    def spent(self: Place, *_: object) -> None:
        with self._errors("read", "file"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as trouble:
        trouble.setattr(Place, method, spent)
        with pytest.raises(ResourcesError):
            opened(tmp_path / "data", place, AT - 10)
    assert offset_of(opened(tmp_path / "data", place, AT - 10)) == AT


def test_without_a_snapshot_that_fits_the_topic_is_folded_and_the_log_says_why(tmp_path: Path, place: Path) -> None:
    """Nothing fits, nothing answers, nothing is there: the store begins as without snapshots, once."""
    with capture_logs() as logs:
        assert offset_of(opened(tmp_path / "one", place, AT + 1)) == AT + 1
    assert [each.get("code") for each in logs] == ["snapshot_expired", None, "topic_cut"]
    with capture_logs() as logs:
        assert offset_of(opened(tmp_path / "two", tmp_path / "nothing")) == 0
    assert [each["event"] for each in logs] == ["no snapshot to begin with: folding from the topic"]
    with capture_logs() as logs:
        refused = open_partition(
            tmp_path / "three",
            KEYSPACE,
            0,
            TOPIC,
            (0, END),
            0,
            snapshots=Snapshots({KEYSPACE: "ftp://a:b@127.0.0.1:1"}),
        )
    assert offset_of(refused) == 0
    assert logs[0]["code"] == "snapshot_unreachable"
    assert "a:b" not in str(logs)


def test_a_restored_store_that_can_not_be_opened_is_set_aside_once(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that passes its checks and makes no good store must not be fetched again and again."""

    def restore(_: Snapshots, data_dir: Path, *__: object) -> bool:
        store = fold(data_dir, 30)
        store.close()
        (data_dir / KEYSPACE / "0" / "manifest.json").write_bytes(b"{}")
        return True

    monkeypatch.setattr(Snapshots, "restore", restore)
    assert offset_of(opened(tmp_path / "data", place)) == 0


KILLED = """
import os, random, signal, sys
from pathlib import Path
from consumers.snapshots.restoring import Snapshots
from consumers.store.store import StoreView
from tests.consumers.snapshots.made import TOPIC
from tests.data_at_rest.history import KEYSPACE
data, place, kills = Path(sys.argv[1]), sys.argv[2], 0
for number in range(40):
    child = os.fork()
    if not child:
        signal.setitimer(signal.ITIMER_REAL, random.Random(number).uniform(0.0005, 0.03))
        Snapshots({KEYSPACE: place}).restore(data, KEYSPACE, 0, TOPIC, (0, 1_000))
        os._exit(0)
    kills += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGALRM
    print((data / KEYSPACE / "0" / "manifest.json").exists())
    if (data / KEYSPACE / "0").exists():
        os.rename(data / KEYSPACE / "0", data / KEYSPACE / f"kept-{number}")
print(kills)
"""
"""Makes the store again and again, each time killed by a timer unless it is done before."""


def test_a_process_that_is_killed_at_any_moment_leaves_a_whole_store_or_none(tmp_path: Path, place: Path) -> None:
    """At random instants of the restore; each store that is there is whole, and the last one goes on."""
    command = [sys.executable, "-c", KILLED, str(tmp_path / "data"), str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=True)
    *whole, kills = done.stdout.split()
    assert int(kills) >= 5, done
    kept = sorted((tmp_path / "data" / KEYSPACE).glob("kept-*"))
    assert len(kept) == whole.count("True")
    for directory in kept:
        with StoreView(directory) as view:
            assert view.head.offset == AT
    assert offset_of(opened(tmp_path / "data", place)) == AT


@pytest.mark.parametrize("method", ["has", "names", "read", "get"])
def test_a_place_that_fails_for_a_moment_is_asked_again_where_the_topic_lacks_its_beginning(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It was started together with the consumer, say. Folded from there the store would lack for good what it has."""

    def away(self: Place, *_: object) -> None:
        with self._errors("read", "file"):
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    with monkeypatch.context() as trouble:
        trouble.setattr(Place, method, away)
        with pytest.raises(PlaceAwayError, match="Connection refused"):
            opened(tmp_path / "data", place, AT - 10)
        assert offset_of(opened(tmp_path / "other", place)) == 0, "the topic has all"
    assert offset_of(opened(tmp_path / "data", place, AT - 10)) == AT


def test_a_place_that_fails_for_long_is_given_up_by_all_that_wait_for_it(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is folded, as where a place is silent. Once it has answered, or was not asked, time begins anew."""
    now, is_away, has = [0.0], [True], Place.has

    def fails(self: Place, name: str) -> bool:
        if is_away[0]:
            raise SnapshotError("it is away")
        return has(self, name)

    monkeypatch.setattr(Place, "has", fails)
    monkeypatch.setattr(restoring, "time", SimpleNamespace(monotonic=lambda: now[0]))
    restores = BackgroundRestores(Snapshots({KEYSPACE: str(place)}))

    def outcome(partition: int, at: float) -> str:
        now[0] = at
        with pytest.raises(StillRestoring):
            restores.restore(tmp_path / "data", KEYSPACE, partition, TOPIC, (1, END))
        until(lambda: not restores.is_running((KEYSPACE, partition)), "it has an outcome")
        try:
            return str(restores.restore(tmp_path / "data", KEYSPACE, partition, TOPIC, (1, END)))
        except PlaceAwayError:
            return "away"

    assert [outcome(0, 0.0), outcome(1, 0.9 * SILENT_S), outcome(1, SILENT_S)] == ["away", "away", "False"]
    assert [outcome(0, SILENT_S), outcome(0, 3 * SILENT_S)] == ["False", "away"]
    is_away[0] = False
    assert outcome(0, 3.5 * SILENT_S) == "True"
    is_away[0] = True
    assert outcome(1, 4.1 * SILENT_S) == "away"


def test_a_place_that_takes_longer_to_fail_than_it_is_waited_for_is_given_up_too(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails at the last file of a copy, say. The partition would be copied again for good, and never taken."""
    now = [0.0]

    def fails(_: Place, name: str) -> bool:
        now[0] += 2 * SILENT_S
        raise SnapshotError(f"{name} is away")

    monkeypatch.setattr(Place, "has", fails)
    monkeypatch.setattr(restoring, "time", SimpleNamespace(monotonic=lambda: now[0]))
    restores = BackgroundRestores(Snapshots({KEYSPACE: str(place)}))

    def outcome() -> str:
        with pytest.raises(StillRestoring):
            restores.restore(tmp_path / "data", KEYSPACE, 0, TOPIC, (1, END))
        until(lambda: not restores.is_running((KEYSPACE, 0)), "it has an outcome")
        try:
            return str(restores.restore(tmp_path / "data", KEYSPACE, 0, TOPIC, (1, END)))
        except PlaceAwayError:
            return "away"

    assert [outcome(), outcome()] == ["away", "False"]


def test_what_a_killed_copy_left_goes_also_if_no_snapshot_is_taken_then(tmp_path: Path) -> None:
    """The place is away at the next start, say, and the store is never made from a snapshot again."""
    fold(tmp_path / "data", 30).close()
    left = tmp_path / "data" / KEYSPACE / "0.restoring"
    left.mkdir()
    (left / "000000.sst").write_bytes(b"half")
    assert offset_of(opened(tmp_path / "data", tmp_path / "nothing")) == 30
    assert not left.exists()


def test_a_place_that_never_answers_holds_back_no_other(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another keyspace's store is made from its own place meanwhile."""
    asked, answers, has = Event(), Event(), Place.has

    def silent(self: Place, name: str) -> bool:
        if self.uri.endswith("silent"):
            asked.set()
            answers.wait(PATIENCE_S)
        return has(self, name)

    monkeypatch.setattr(Place, "has", silent)
    restores = BackgroundRestores(Snapshots({"other": str(tmp_path / "silent"), KEYSPACE: str(place)}))
    try:
        with pytest.raises(StillRestoring):
            restores.restore(tmp_path / "data", "other", 0, TOPIC, (0, END))
        assert asked.wait(PATIENCE_S)
        partition, _ = in_background(tmp_path / "data", place, 0, restores)
        assert offset_of(partition) == AT
        assert restores.is_running(("other", 0))
    finally:
        answers.set()


def in_turn(restores: BackgroundRestores, data_dir: Path, partitions: int) -> None:
    """Begins with the restores of so many partitions, one after the other."""
    for number in range(partitions):
        with pytest.raises(StillRestoring):
            restores.restore(data_dir, KEYSPACE, number, TOPIC, (0, END))


def test_a_server_that_accepts_and_never_answers_is_given_up_and_the_topic_folded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store of which only the socket is left holds nobody back: not the partition, nor those after it."""
    monkeypatch.setattr(restoring, "SILENT_S", 0.5)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with socket.create_server(("127.0.0.1", 0)) as silent, capture_logs() as logs:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        restores = BackgroundRestores(Snapshots({KEYSPACE: "s3://kept/freshet"}))
        in_turn(restores, tmp_path / "data", 2)
        partition, aside = in_background(tmp_path / "data", tmp_path, 0, restores)
        assert (offset_of(partition), aside) == (0, None)
        until(lambda: not restores.is_running((KEYSPACE, 1)), "it has waited for the same place")
        assert restores.restore(tmp_path / "data", KEYSPACE, 1, TOPIC, (0, END)) is False
    refused = [each for each in logs if each["event"] == "a snapshot is not used"]
    assert [(each["code"], each["partition"]) for each in refused] == [
        ("snapshot_unreachable", 0),
        ("snapshot_unreachable", 1),
    ]
    assert "s3://kept/freshet has said nothing for" in refused[0]["reason"]


def test_a_connection_that_hangs_does_not_shut_its_place(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waited behind it is given up with it; who comes later asks the place, and has its store."""
    answers, has, first = Event(), Place.has, iter([True])

    def hangs_once(self: Place, name: str) -> bool:
        if next(first, False):
            answers.wait()
        return has(self, name)

    monkeypatch.setattr(Place, "has", hangs_once)
    monkeypatch.setattr(restoring, "SILENT_S", 0.3)
    restores = BackgroundRestores(Snapshots({KEYSPACE: str(place)}))
    try:
        in_turn(restores, tmp_path / "data", 2)

        def is_given_up(number: int) -> bool:
            return not restores.is_running((KEYSPACE, number))

        for number in range(2):
            until(partial(is_given_up, number), "it is given up")
            assert not restores.restore(tmp_path / "data", KEYSPACE, number, TOPIC, (0, END))
        monkeypatch.setattr(restoring, "SILENT_S", 30.0)  # whoever waits behind it is given up then
        partition, _ = in_background(tmp_path / "later", place, 0, restores)
        assert offset_of(partition) == AT
    finally:
        answers.set()


def test_an_answer_that_comes_too_late_changes_nothing(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store that was folded from the topic meanwhile stays, and the next restore from that place is done again."""
    asked, answers, get, before = Event(), Event(), Place.get, threading.enumerate()

    def late(self: Place, name: str, file: Path) -> None:
        monkeypatch.setattr(restoring, "SILENT_S", 0.2)
        asked.set()
        answers.wait(PATIENCE_S)
        monkeypatch.setattr(restoring, "SILENT_S", PATIENCE_S)
        get(self, name, file)

    monkeypatch.setattr(Place, "get", late)
    restores = BackgroundRestores(Snapshots({KEYSPACE: str(place)}))
    partition, _ = in_background(tmp_path / "data", place, 0, restores)
    assert asked.is_set()
    building = tmp_path / "data" / KEYSPACE / "0.restoring"
    [copying] = [each for each in threading.enumerate() if each.name == "restore-0" and each not in before]
    answers.set()
    copying.join(PATIENCE_S)
    assert not copying.is_alive()
    assert not building.exists(), "what was copied is removed"
    assert offset_of(partition) == 0
    assert offset_of(opened(tmp_path / "data", place)) == AT, "nothing was folded in it, so it counts as missing"


def test_a_place_that_is_slow_but_says_something_is_waited_for(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only silence counts: a large file over a thin line takes longer than a silence may, and comes in parts."""
    get, now = Place.get, [0.0]

    def slow(self: Place, name: str, file: Path) -> None:
        for _ in range(5):
            now[0] += 0.6 * patience.SILENT_S
            self._heard()
        get(self, name, file)

    monkeypatch.setattr(Place, "get", slow)
    monkeypatch.setattr(patience, "time", SimpleNamespace(monotonic=lambda: now[0]))
    partition, _ = in_background(tmp_path / "data", place, 0)
    assert offset_of(partition) == AT


@pytest.mark.parametrize("where", ["memory://parts", "file://{}/parts"])
def test_a_file_that_arrives_in_parts_is_heard(tmp_path: Path, where: str) -> None:
    """Each part, also those of a file that never becomes whole: a directory may lie on a slow disk far away."""
    heard: list[int] = []
    size, where = 20 << 20, where.format(tmp_path)
    with fsspec.open(f"{where}/file", "wb", auto_mkdir=True) as file:
        file.write(bytes(size))
    Place(where, lambda: heard.append(1)).get("file", tmp_path / "file")
    assert (tmp_path / "file").stat().st_size == size
    assert len(heard) > 4


SILENT = """
import sys
from pathlib import Path
from threading import Event
from consumers.process.restoring import BackgroundRestores, StillRestoring
from consumers.snapshots.places import Place
from consumers.snapshots.restoring import Snapshots
from tests.consumers.snapshots.made import TOPIC
from tests.data_at_rest.history import KEYSPACE

asked = Event()
Place.get = lambda *_: (asked.set(), Event().wait())
restores = BackgroundRestores(Snapshots({KEYSPACE: sys.argv[1]}))
try:
    restores.restore(Path(sys.argv[2]), KEYSPACE, 0, TOPIC, (0, int(sys.argv[3])))
except StillRestoring:
    assert asked.wait()
print("ends")
"""


def test_a_place_that_never_answers_does_not_keep_the_process_from_ending(tmp_path: Path, place: Path) -> None:
    """No thread that copies files is waited for when the process ends, whichever the file system's timeouts are."""
    command = [sys.executable, "-c", SILENT, str(place), str(tmp_path / "data"), str(END)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout.splitlines()[-1] == "ends"
