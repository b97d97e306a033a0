"""``python -m tests.data_at_rest.flips``: flips one byte of a kept store after the other, and reads the store.

It is a process of its own, so that damage that makes native code loop is found by a timeout.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from consumers.store.errors import StoreError
from consumers.store.rocks import tables
from consumers.store.store import PartitionStore, partition_directory
from consumers.store.view import StoreView
from tests.data_at_rest.history import CURRENT, KEYSPACE, TOPIC_ID, Items, keys_ever, unpack

SMALL_BYTES = 1_024
"""In a file up to this size every byte is flipped."""
CODES = ("store_corrupt", "fold_changed", "topic_changed", "store_newer")

PARTS = {"live": "live/shop/0", "checkpoint": "checkpoints/shop/0/1", "rebuild": "rebuild/shop/0"}


def by_owner(root: Path) -> Items:
    """Opened as its owner does, each key by look-up and all by scan."""
    tables._shared_cache.clear()  # as a new process: the cache knows the same files from before they were damaged
    store = PartitionStore.open(root, keyspace=KEYSPACE, partition=0, topic_id=TOPIC_ID)
    try:
        found = list(store.items())
        for key, value in found:
            if key > b"\2" and store.get(key) != value:
                raise AssertionError(f"{key!r} is looked up as {store.get(key)!r} and scanned as {value!r}")
        return found
    finally:
        store.close(commit=False)


def by_view(root: Path) -> Items:
    """Opened read-only, as `freshet verify`, `inspect` and a rebuild's base do."""
    with StoreView(partition_directory(root, KEYSPACE, 0)) as view:
        return list(view.items())


def states(fixture: Path, part: str, read: Callable[[Path], Items], every: int, seed: int) -> Iterator[tuple[str, str]]:
    """(place, outcome) of each flip: ``detected``, ``harmless``, ``WRONG…`` or ``earlier``.

    ``earlier`` occurs only in a live store: RocksDB ignores a damaged last record of its manifest, and the tail is
    folded again.
    """
    rng = random.Random(seed)
    whole = fixture / PARTS[part]
    with tempfile.TemporaryDirectory(dir=_memory()) as directory:
        copy = Path(directory) / "copy"
        expected = _read_copy(whole, copy, read)
        for file in sorted(path for path in whole.rglob("*") if path.is_file()):
            content = file.read_bytes()
            step = 1 if len(content) <= SMALL_BYTES and file.suffix != ".sst" else every
            for at in range(rng.randrange(step), len(content), step):
                damaged = bytearray(content)
                damaged[at] ^= 1 << rng.randrange(8)
                place = f"{file.relative_to(whole)} at {at}"
                yield place, _outcome(whole, copy, read, expected, file.relative_to(whole), bytes(damaged))


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _read_copy(whole: Path, copy: Path, read: Callable[[Path], Items]) -> Items:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, partition_directory(copy, KEYSPACE, 0))
    return read(copy)


def _outcome(
    whole: Path, copy: Path, read: Callable[[Path], Items], expected: Items, name: Path, damaged: bytes
) -> str:
    shutil.rmtree(copy, ignore_errors=True)
    target = partition_directory(copy, KEYSPACE, 0)
    shutil.copytree(whole, target)
    (target / name).write_bytes(damaged)
    try:
        found = read(copy)
    except StoreError as error:
        good = error.code in CODES and str(error).isprintable() and error.hint
        return "detected" if good else f"WRONG error {error.code}: {error} ({error.hint})"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
        return f"WRONG {type(error).__name__}: {error}"
    if found == expected:
        return "harmless"
    if read is by_owner and name.name.startswith("MANIFEST") and dict(found).keys() <= keys_ever():
        return "earlier"
    return f"WRONG items: {len(found)} of {len(expected)}"


def main() -> None:
    """Prints how many flips had which outcome, as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.data_at_rest.flips", description=__doc__)
    parser.add_argument("--fixture", default=CURRENT)
    parser.add_argument("--part", choices=PARTS, default="live")
    parser.add_argument("--every", type=int, default=1, help="of larger files one byte in so many")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found: dict[str, int] = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        fixture = unpack(options.fixture, Path(directory))
        read = by_owner if options.part == "live" else by_view
        for place, outcome in states(fixture, options.part, read, options.every, options.seed):
            kind = outcome.split(" ")[0]
            found[kind] = found.get(kind, 0) + 1
            if kind == "WRONG":
                wrong.append(f"{place}: {outcome}")
    print(json.dumps({"outcomes": found, "wrong": wrong[:50]}))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
