"""The host of the byte cache: one process with a program's file system and a front, and what befalls its disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from fsspec import filesystem, register_implementation

from lab.simulation.engine import Outcome
from lab.simulation.files.store import STYLES, RemoteStore, SimulatedFileSystem
from lab.simulation.kernel.fronts import listen
from lab.simulation.kernel.substitution import Twins
from lab.simulation.kernel.threads import SimulatedLock
from lab.simulation.whole_processes.run import Bound, WholeProcesses
from serving.bytecache.disk import marker
from serving.bytecache.disk.directory import Directory
from serving.bytecache.disk.layout import HEAD_BYTES
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.policy.pools import POLICIES
from serving.bytecache.shared import opening
from serving.bytecache.shared.server import Server
from serving.http.bytes.files import Files
from serving.http.front import make_front
from serving.locations.queues import Batch
from serving.locations.refreshing import Locations

HOST: Final = "host"
PORT: Final = 8480
SCHEME: Final = "simulated"
ROOT: Final = f"{SCHEME}://files"
QUOTA: Final = 9 << 20
ROOM: Final = "no more room than given"
ADMISSIONS: Final = ("all", "all", "second", "share=0.5", f"budget={QUOTA * 200}")
SHAPE: Final = 6
"""Integers in the first op."""
TRACED: Final = 4
"""One of so many hosts keeps a trace."""
PLACES: Final = ("data", "sums", "heads", "heat", "names.log", marker.NAME)
"""The files of a directory that may be damaged."""
RECORD: Final = HEAD_BYTES
"""Damage meets bytes between zeros only where so many bytes are not all zeros."""
STRIDE: Final = 40_503
"""Odd, so that neighbouring numbers lead to bytes all over a file."""
BURST: Final = 8
"""Places of a file that are damaged at once."""
ROOM_SLACK: Final = 64 << 10
"""What the small files beside a directory's data take."""

register_implementation(SCHEME, SimulatedFileSystem, clobber=True)


class NobodyElse:
    """Stands for the owner's socket: no other process of the machine attaches."""

    def __init__(self, *_: object) -> None: ...

    def close(self) -> None:
        """There is no socket."""

    def after_fork(self) -> None:
        """Nobody forks."""


class NoOwners:
    """A directory of locations for a front that serves nothing but files."""

    change = 0

    def changed(self, after: int) -> tuple[int, list[Any]]:
        """See `serving.locations.refreshing.Directory`."""
        return after, []

    async def read(self, batch: Batch) -> dict[Any, Any]:
        """See there."""
        del batch
        return {}


class HostRun(WholeProcesses):
    """A store, a host, and the host's disk."""

    processes = (HOST,)
    states: Mapping[str, Callable[[Any], bool]]

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: the scheduler's seed, what the store says of versions, policy, admission, key, scope."""
        seed, style, policy, admission, sealed, scoped = shape
        super().__init__(seed, outcome, trace)
        self.states = STATES
        self.store = RemoteStore(self.kernel, STYLES[style % len(STYLES)])
        SimulatedFileSystem.present = self.store
        self.wanted = [HOST]
        self.place = self.disk.root / "cache"
        self.admission = ADMISSIONS[admission % len(ADMISSIONS)]
        self.trace = self.disk.root / "trace" if seed % TRACED == 0 else None
        """Where the host keeps a trace of its reads, if it does."""
        keys = self.disk.root / "keys"
        keys.write_text("0a" * 32)
        self.options: dict[str, Any] = {
            "dirs": (f"{self.place}:ssd:{QUOTA}",),
            "shards": 1,
            "policy": [*POLICIES][policy % len(POLICIES)],
            "admission": self.admission,
            "key_file": str(keys) if sealed % 2 else "",
            "scopes": {"small": 1 << 20} if scoped % 2 else {},
            "scope": "small" if scoped % 2 else "",
            "gap": (64 << 10) * (seed % 3),
            "request_bytes": (1 << 18) << seed % 4,
            "trace": str(self.trace or ""),
            "asynchronous": True,  # no thread of fsspec's own
            "skip_instance_cache": True,
        }
        self.files: FreshetFileSystem | None = None
        """What programs of the host use, while it is open."""

    def twins(self) -> Twins:
        """See `WholeProcesses.twins`."""
        return {Server: NobodyElse}

    def bounds(self) -> Sequence[Bound]:
        """See `WholeProcesses.bounds`. The caches of a process are its own, and so is their lock."""
        small = [(marker, "SLOTS_MAX", 1_024)]
        return [
            (opening, "_lock", SimulatedLock(self.kernel)),
            (opening, "_caches", {}),
            (opening, "_places", {}),
            *small,
        ]

    def begin(self) -> None:
        """Starts the host."""
        self.start(HOST)

    def start(self, name: str) -> None:
        """Starts the host, unless it runs."""
        if not self.kernel.is_running(name):
            self.kernel.process(name).at_end.append(self._ended)
            self.kernel.spawn(name, self._open, "opens")

    def _ended(self) -> None:
        self.files = None
        opening._caches.clear()
        opening._places.clear()
        opening._lock = SimulatedLock(self.kernel)  # type: ignore[assignment]

    def _open(self) -> None:
        try:
            store = {"store": self.store}
            opened = filesystem("freshet", target_protocol=SCHEME, target_options=store, **self.options)
            served = Files([ROOT], self.options)
        except ByteCacheError as error:
            # a damaged marker may name a later version; an operator then does what the hint says
            is_newer = error.code == "bytes_dir_newer" and "damage" in self.struck
            is_expected = is_newer or "disk" in " ".join(self.struck)
            if not is_expected:
                self.complain("never raises", f"the directory can't be opened: {error}")
            if is_newer:
                shutil.rmtree(self.place)
            self.gave_up(HOST, error)
            return
        self.files = opened
        front = make_front([], Locations(NoOwners()), files=served)
        self.kernel.run_task(HOST, lambda: listen(front, PORT))

    @property
    def directory(self) -> Directory | None:
        """The open directory."""
        if self.files is None:
            return None
        found: Directory | None = self.files.cache.places[0].directory  # type: ignore[attr-defined]
        return found

    def on_host(self, work: Callable[[], object], within_s: float) -> bool:
        """Runs ``work`` in a thread of the host, and waits for its end."""
        thread = self.kernel.spawn(HOST, work, "program")
        self.run_until(lambda: thread.done or thread.process.dead, within_s)
        return thread.done

    def check_room(self) -> None:
        """What is on the disk is no more than the directory says, and that is no more than it was given."""
        directory = self.directory
        if directory is None or directory.writers.counts.waiting_bytes:
            return
        taken = sum(each.stat().st_blocks * 512 for each in self.place.rglob("*") if each.is_file())
        if taken > directory.used + ROOM_SLACK:
            self.complain(ROOM, f"{taken} bytes are on the disk, and {directory.used} are accounted for")
        if directory.used > directory.quota:
            self.complain(ROOM, f"{directory.used} bytes are used of {directory.quota}")

    # --- ops ---

    def op_resize(self, mebibytes: int) -> None:
        """The directory's quota changes."""
        quota = (9 + 3 * mebibytes) << 20
        if self.files is not None:
            place = self.files.cache.places[0]
            self.on_host(lambda: place.resize(quota), 60)  # type: ignore[attr-defined]
            self.check_room()

    def op_reserve(self, mebibytes: int, pause: int) -> None:
        """A program borrows room of the cache for a while."""
        if (files := self.files) is not None:
            self.on_host(partial(self._reserve, files, mebibytes << 20, pause), 120)

    def _reserve(self, files: FreshetFileSystem, wanted: int, pause: int) -> None:
        try:
            with files.reserved(wanted):
                self.kernel.park(pause)
                directory = self.directory
                if directory is not None and directory.used + wanted > directory.quota + ROOM_SLACK:
                    self.complain(ROOM, f"{wanted} bytes were given away, and {directory.used} of the quota are used")
        except ByteCacheError as error:
            self.outcome.answers[error.code] += 1

    def op_verify(self) -> None:
        """An operator lets every block be read."""
        if self.files is not None:
            place = self.files.cache.places[0]
            self.on_host(place.verify, 60)  # type: ignore[attr-defined]

    def op_forget(self, path: int, below: int) -> None:
        """A program lets the cache forget a file, or all."""
        if (files := self.files) is not None:
            name = f"f{path}"[: 1 if below else None]
            self.on_host(partial(files.forget, f"{ROOT}/{name}", prefix=bool(below)), 60)

    def op_die_writing(self, steps: int) -> None:
        """The host dies within some steps of writes."""
        self.count_fault("death while writing")
        self.disk.dies_at[HOST] = 1 + steps

    def op_disk(self, fails: int, pause: int) -> None:
        """The host's disk is full, or fails, for a while."""
        self.count_fault("disk fails" if fails else "disk full")
        broken = self.disk.failing if fails else self.disk.full
        broken.add(HOST)
        self.pause(pause)
        broken.discard(HOST)

    def op_damage(self, place: int, at: int, wide: int) -> None:
        """A byte, several in a row, or some all over one of the directory's files change."""
        name = PLACES[place % len(PLACES)]
        found = sorted(self.place.glob(f"*/{name}")) or sorted(self.place.glob(name))
        if not found:
            return
        self.count_fault("damage")
        length = (1, 16, 1)[wide % 3]
        with open(found[0], "r+b") as file:
            places = _written(file.fileno(), at, BURST if wide % 3 == 2 else 1)
            self.say(f"{name} is damaged at {places}")
            for place in places:
                kept = os.pread(file.fileno(), length, place)
                os.pwrite(file.fileno(), bytes(each ^ (1 + at % 255) for each in kept), place)

    def op_store(self, down: int, pause: int) -> None:
        """The store goes away for a while."""
        self.store.is_down = bool(down % 2)
        if self.store.is_down:
            self.count_fault("store down")
        self.pause(pause)
        self.store.is_down = False

    def op_shorten(self, times: int) -> None:
        """The store gives less than it has."""
        self.count_fault("short answers")
        self.store.to_shorten = 1 + times


def _written(file: int, at: int, count: int) -> list[int]:
    """Up to ``count`` bytes of a sparse file, chosen by ``at`` among records that are in use.

    Which byte of a record is not zero must not count: nonces are random, and a history is the same each time.
    """
    records, offset = list[int](), 0
    size = os.fstat(file).st_size
    while offset < size:
        try:
            begin = os.lseek(file, offset, os.SEEK_DATA)
        except OSError:
            break
        offset = os.lseek(file, begin, os.SEEK_HOLE)
        data = os.pread(file, offset - begin, begin)
        records += [begin + i for i in range(0, len(data), RECORD) if any(data[i : i + RECORD])]
    if not records:
        return []
    record, byte = divmod(at * STRIDE % (len(records) * RECORD), RECORD)
    chosen = {(record + i * len(records) // count) % len(records) for i in range(count)}
    return sorted(min(records[each] + byte, size - 1) for each in chosen)


STATES: Final[dict[str, Callable[[HostRun], bool]]] = {
    "up": lambda run: run.files is not None,
    "down": lambda run: run.files is None,
    "store away": lambda run: run.store.is_down,
}
