"""What is read from disk: entries, the head, catalog states, manifests, reports of a rebuild, RocksDB's own logs."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

from consumers.fold.catalog_state import (
    Binding,
    CatalogStateError,
    TableState,
    decode_binding,
    decode_table,
    encode_binding,
    encode_table,
)
from consumers.fold.entry import VALUE, VOID, decode_entry, encode_transaction_tag
from consumers.fold.state import Head, Lineage, Void, head_entries, read_head
from consumers.store.errors import StoreCorruptError, StoreNewerError
from consumers.store.manifest import MANIFEST_NAME, Manifest, read_manifest, write_manifest
from consumers.store.rocks.small_files import check_log
from spark_jobs.output import REPORT_NAME, RebuildError, read_report
from tests.fuzz.engine import Case, Misbehaved, Target, refused
from tests.fuzz.mutate import Rng, some_bytes, some_tree
from tokens.writeid_state import WriteIds

_ENTRY = struct.pack(">BQ", VALUE, 7) + encode_transaction_tag("shop/0", 1, "MariaDB/0-1-5", 1_700_000_000)
ENTRIES = [
    _ENTRY + b'{"id":1}',
    struct.pack(">BQ", VOID, 2**40) + encode_transaction_tag("ü", 2, "HiveEvent/7", -1, "old/0 MariaDB/1-1-3"),
]
HEAD = Head(
    17,
    "xxh3_64;partitions=4",
    {"shop/0": Lineage(1, 9, 8, "MariaDB/0-1-8", 1_700_000_000, "MariaDB/0-1-0")},
    {("*", "shop/0"): Void(1, 3, ""), ("shop.items", "shop/0"): Void(1, 4, "MariaDB/0-1-4")},
)


def _entry() -> Case:
    def run(value: bytes) -> None:
        found = refused((ValueError, struct.error), lambda: decode_entry(value))
        if found is None:
            return
        tag = encode_transaction_tag(found.shard, found.epoch, found.position, found.timestamp, found.origin)
        again = decode_entry(struct.pack(">BQ", found.kind, found.ordinal) + tag + found.image)
        if again != found:
            raise Misbehaved(f"{found} is stored as {again}")

    return Case(lambda rng: some_bytes(rng, ENTRIES), run)


def _head() -> Case:
    good = head_entries(HEAD)

    def draw(rng: Rng) -> list[tuple[bytes, bytes]]:
        found = []
        for key, value in good.items():
            if rng.random() < 0.3 and key != b"\0layout":
                text = json.dumps(some_tree(rng, json.loads(value)))
                found.append((key, text.encode() if rng.random() < 0.5 else some_bytes(rng, [value, text.encode()])))
            else:
                found.append((some_bytes(rng, [key]) if rng.random() < 0.05 else key, value))
        return found

    def run(items: list[tuple[bytes, bytes]]) -> None:
        head = refused((ValueError, TypeError), read_head, items)
        if head is not None and read_head(head_entries(head).items()) != head and "nan" not in repr(head):
            raise Misbehaved(f"{head} is stored as another head")

    return Case(draw, run)


def _catalog_state() -> Case:
    ids = WriteIds(7, [(3, 1), (5, 2)], [(4, 4)], True)
    state = TableState(7, "hive/0", 1, 9, "d.t", exists=True, ids=ids, image=b"{}", pending=[(1, 3)])
    seeds = [encode_table(state), encode_binding(Binding(7, "hive/0", 1, 2)), encode_table(TableState(1, "", 0, 0))]
    seeds.append(b"\x91" * 20_000)

    def run(value: bytes) -> None:
        found = refused(CatalogStateError, decode_table, value)
        if found is not None:
            found.waits_for(), found.ids.text("d.t"), encode_table(found)
        refused(CatalogStateError, decode_binding, value)

    return Case(lambda rng: some_bytes(rng, seeds), run)


_MEMORY = Path("/dev/shm")
"""Where there is no disk to wait for."""


class _Directory:
    """A directory with one file that is written over and over."""

    def __init__(self, name: str) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="freshet-fuzz-", dir=_MEMORY if _MEMORY.is_dir() else None)
        self.path = Path(self.directory.name)
        self.file = self.path / name


def _manifest() -> Case:
    place = _Directory(MANIFEST_NAME)
    manifest = Manifest("shop", 0, "topic-id", "xxh3_64;partitions=4", offset=7)
    write_manifest(place.path, manifest)
    good = place.file.read_bytes()
    fields = json.loads(good)

    def draw(rng: Rng) -> bytes:
        if rng.random() < 0.5:
            text = json.dumps(some_tree(rng, fields), ensure_ascii=rng.random() < 0.5)
            return text.encode("utf-8", "surrogatepass")
        return some_bytes(
            rng, [good, b"[" * 20_000, b'{"checksum":' + b"[" * 900 + b"]" * 900 + b',"format_version":1}']
        )

    def run(data: bytes) -> None:
        place.file.write_bytes(data)
        found = refused((StoreCorruptError, StoreNewerError), read_manifest, place.path)
        if found is not None and found != manifest:
            raise Misbehaved(f"damaged, it reads as {found}")

    return Case(draw, run, place.directory.cleanup)


def _report() -> Case:
    place = _Directory(REPORT_NAME)
    partition = {"partition": 0, "start": 0, "end": 9, "messages": 9, "dead": 0, "seconds": 0.1}
    good: dict[str, Any] = {
        "report_version": 1,
        "keyspace": "shop",
        "topic": "freshet.shop.events",
        "topic_id": "t",
        "fold_version": 1,
        "ends": {"0": 9},
        "partitions": [partition],
        "seconds": 1.5,
    }

    def draw(rng: Rng) -> bytes:
        text = json.dumps(some_tree(rng, good)).encode()
        return text if rng.random() < 0.5 else some_bytes(rng, [text, json.dumps(good).encode(), b"[" * 20_000])

    def run(data: bytes) -> None:
        place.file.write_bytes(data)
        refused(RebuildError, read_report, place.path)

    return Case(draw, run, place.directory.cleanup)


def _log() -> Case:
    from consumers.store.rocks.small_files import masked_crc32c

    def record(kind: int, body: bytes) -> bytes:
        typed = bytes([kind]) + body
        return masked_crc32c(typed).to_bytes(4, "little") + len(body).to_bytes(2, "little") + typed

    good = record(1, b"a" * 40) + record(2, b"b" * 20) + record(4, b"c") + record(1, b"")

    def run(data: bytes) -> None:
        refused(StoreCorruptError, check_log, Path("MANIFEST-000001"), data)

    return Case(lambda rng: some_bytes(rng, [good, good * 3]), run)


TARGETS = (
    Target("entry", "row entries of a store", _entry),
    Target("head", "a store's head", _head),
    Target("catalog_state", "table states and name bindings of a store", _catalog_state),
    Target("manifest", "manifest.json", _manifest, 0.5),
    Target("report", "rebuild.json", _report, 0.5),
    Target("rocks_log", "RocksDB's manifest, before RocksDB reads it", _log, 0.5),
)
