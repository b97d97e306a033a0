"""How long warm reads of the byte cache take beside a process that fills it as fast as its store gives.

Three processes: the owner of the directory, one that is attached to it, and one that fills it. The owner and the
attached one read in turn, one read after the other: alone, beside a process that only computes, and beside the one
that fills. Times are by the clock; and again less what the kernel says that the reading thread waited for a processor,
which is the machine's, and most of it where other work runs. All in one run, over several rounds. The filling process
goes through a file that is longer than the quota: each extent that it stores puts another one out. The owner writes
both down, in threads beside its reads.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import fsspec
import xxhash

from benchmarks.percentiles import percentiles_ms
from serving.bytecache.filesystem.remote import SETTLED_S
from serving.bytecache.shared.opening import close_caches

QUOTA: Final = 192 << 20
WARM_BYTES: Final = 32 << 20
COLD_BYTES: Final = 256 << 20
SIZES: Final = (4 << 10, 16 << 10, 64 << 10)
ROUNDS: Final = 5
SECONDS: Final = 2.0
READERS: Final = ("owner", "attached")
BESIDE: Final = ("alone", "computing", "filling")


def saturated(folder: Path) -> dict[str, float]:
    """Percentiles in µs, their ratios to those alone in the same round, MiB/s that were filled: medians over rounds."""
    for name, size in (("warm", WARM_BYTES), ("cold", COLD_BYTES)):
        with (folder / name).open("wb") as file:
            for i in range(size >> 20):
                file.write(random.Random(i).randbytes(1 << 20))
    time.sleep(SETTLED_S + 0.1)  # what was changed just now is not cached
    found: dict[str, list[float]] = {}
    with ExitStack() as each:
        ask = {role: each.enter_context(_process(role, folder)) for role in (*READERS, *BESIDE[1:])}
        for _ in range(ROUNDS):
            for reader in READERS:
                alone: dict[str, float] = {}
                for beside in BESIDE:
                    if beside in ask:
                        ask[beside]("begin")
                    times: dict[str, float] = ask[reader]("measure")
                    done = ask[beside]("end") if beside in ask else 0
                    alone = alone or times
                    for what, took in times.items():
                        found.setdefault(f"{reader}, {beside}, {what}, µs", []).append(took)
                        found.setdefault(f"{reader}, {beside}, {what}, of alone", []).append(took / alone[what])
                    if beside == "filling":
                        found.setdefault(f"{reader}, {beside}, MiB/s", []).append(done)
    return {name: median(figures) for name, figures in found.items()}


@contextmanager
def _process(role: str, folder: Path) -> Iterator[Callable[[str], Any]]:
    command = [sys.executable, "-m", "benchmarks.byte_saturated", role, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        asked, answers = child.stdin, child.stdout

        def ask(what: str) -> Any:
            asked.write(f"{what}\n")
            asked.flush()
            return json.loads(answers.readline())

        ask("ready")
        yield ask
        asked.close()


def _serve(role: str, folder: Path) -> None:
    """One of the processes: answers each line that it is told."""
    fs = fsspec.filesystem("freshet", target_protocol="file", dirs=(f"{folder}/cache:{QUOTA >> 20}MiB",))
    answer = (
        _reader(fs, folder) if role in READERS else _neighbour(_filling(fs, folder) if role == "filling" else _spin)
    )
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), flush=True)
    close_caches()


def _reader(fs: Any, folder: Path) -> Callable[[str], Any]:
    file, cache, chance = fs.open_cached(f"{folder}/warm", value="pinned"), fs.cache, random.Random(1)
    schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def answer(what: str) -> Any:
        if what == "ready":
            return cache.prefetch(file, 0, WARM_BYTES)
        clock, own, missed = [], [], file.tally.misses
        began = time.perf_counter()
        end = began + SECONDS
        while began < end:
            size = chance.choice(SIZES)
            place = chance.randrange(WARM_BYTES // size) * size
            waited, began = _waited_s(schedstat), time.perf_counter()
            cache.read(file, place, place + size)
            clock.append(time.perf_counter() - began)
            own.append(clock[-1] - (_waited_s(schedstat) - waited))
        assert file.tally.misses == missed, "what is measured are hits"
        return _percentiles(clock, "") | _percentiles(own, ", processor had")

    return answer


def _waited_s(schedstat: int) -> float:
    """How long a thread has waited for a processor so far, as the kernel counts it."""
    return int(os.pread(schedstat, 64, 0).split()[1]) / 1e9


def _percentiles(seconds: list[float], which: str) -> dict[str, float]:
    """Name → µs."""
    names = {"p50_ms": "p50", "p99_ms": "p99", "p999_ms": "p99.9", "max_ms": "most"}
    return {f"{names[name]}{which}": 1_000 * found for name, found in percentiles_ms(seconds).items()}


def _neighbour(step: Callable[[], int]) -> Callable[[str], Any]:
    """Steps from ``begin`` to ``end``; the answer to that is MiB/s."""
    going, stop, done = threading.Thread(), threading.Event(), [0, 0.0]

    def run() -> None:
        while not stop.is_set():
            done[0] += step()

    def answer(what: str) -> float:
        nonlocal going
        if what == "begin":
            stop.clear()
            done[:] = 0, time.perf_counter()
            going = threading.Thread(target=run)
            going.start()
        elif what == "end":
            stop.set()
            going.join()
            return done[0] / 2**20 / (time.perf_counter() - done[1])
        return 0.0

    return answer


def _spin(memory: bytes = bytes(1 << 20)) -> int:
    for _ in range(100):
        xxhash.xxh3_64_intdigest(memory)
    return 0


def _filling(fs: Any, folder: Path) -> Callable[[], int]:
    file, cache, at = fs.open_cached(f"{folder}/cold"), fs.cache, 0

    def step() -> int:
        nonlocal at
        before, low = file.tally.miss_bytes, at
        at = (at + (4 << 20)) % COLD_BYTES
        cache.read(file, low, low + (4 << 20))
        return int(file.tally.miss_bytes - before)

    return step


if __name__ == "__main__":
    _serve(sys.argv[1], Path(sys.argv[2]))
