"""The history in the kept fixtures, and how they are written: ``python -m tests.data_at_rest.history``.

Run it once for each version of format or fold. It writes a new fixture; existing ones never change.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from base64 import b64encode
from pathlib import Path
from typing import Any

from consumers.fold.state import FOLD_VERSION, head_entries
from consumers.store.digest import digest_items
from consumers.store.manifest import FORMAT_VERSION
from consumers.store.store import PartitionStore, partition_directory
from spark_jobs.output import RebuildReport, write_report
from spark_jobs.partition import FoldTask
from stream.wire.codec import encode
from stream.wire.events import ABSENT, DROPS_KEPT, VALUE, VOID
from tests.consumers.histories import SHARD, Folded, frame, gtid, key, marker, start
from tests.spark_jobs.topics import in_arrow

FIXTURES = Path(__file__).parent / "fixtures"
KEYSPACE = "shop"
TOPIC_ID = "topic-id"
Items = list[tuple[bytes, bytes]]


def _event(event: str, at: int, fields: dict[str, Any]) -> bytes:
    place = {"shard": SHARD, "epoch": 1, "ordinal": at, "gtid": gtid(at), "timestamp": 1_700_000_000 + at}
    return encode(event, place | {"position": gtid(at)} | fields)


def messages() -> list[bytes]:
    """Rows of every kind, a description, catalog tables in several states, voids, markers, poison."""
    columns = [{"name": "id", "kind": "int", "exact": True}, {"name": "ü", "kind": "text", "exact": False}]
    described = {"table": "shop.items", "columns": columns, "primary_key": ["id"], "cacheable": True, "reason": ""}
    image = {"table_id": 7, "name": "d.t", "kind": "transactional", "txn": 3, "write_id": 2, "staged": False}
    image |= {"image": '{"v":"ü"}'.encode(), "write_ids": "d.t:1:9223372036854775807::", "lo": gtid(50), "hi": gtid(50)}
    dropped = image | {"table_id": 8, "name": "d.u", "kind": "external", "image": None, "write_ids": None}
    found = [start(), _event("TableSchema", 2, described), marker(2)]
    for at in range(3, 43):
        operation = ABSENT if at % 7 == 0 else VOID if at % 11 == 0 else VALUE
        row = b'{"id":%d,"\xc3\xbc":"%b"}' % (at % 17, b"x" * (at % 5) * 40) if operation == VALUE else b""
        found.append(frame([(key(at % 17), operation, row, at)], timestamps=[1_700_000_000 + at]))
    found.append(
        frame([(key(n, "shop.orders"), VALUE, b"{}", 43 + n) for n in range(5)], origins=["old/0 MariaDB/1-1-3"] * 5)
    )
    found += [marker(47), _event("TableVoid", 48, {"table": "shop.orders", "reason": "DDL"}), b"poison", marker(48)]
    found += [
        _event("NameBinding", 49, {"name": "d.t", "table_id": 7, "previous_name": ""}),
        _event("TableImage", 50, image | {"change": "created"}),
        _event("AllocWriteId", 51, {"table_id": 7, "txn": 3, "write_id": 2, "reallocated": False}),
        _event("TableImage", 52, image | {"change": "written", "image": None, "write_ids": None}),
        _event("CommitTxn", 53, {"txn": 3, "write_ids": [{"table_id": 7, "write_id": 2}]}),
        _event("AllocWriteId", 54, {"table_id": 7, "txn": 4, "write_id": 3, "reallocated": False}),
        _event("AbortTxn", 55, {"txn": 4, "write_ids": [{"table_id": 7, "write_id": 3}], "reconciled": False}),
        _event("NameBinding", 56, {"name": "d.u", "table_id": 8, "previous_name": ""}),
        _event("TableImage", 57, dropped | {"change": "created", "image": b"{}"}),
        _event("TableImage", 58, dropped | {"change": "dropped"}),
    ]
    found += [frame([(key(99), VALUE, b'{"id":99}', 59)]), marker(59)]
    found += [_event("TableBackfill", 60, {"table": "shop.items", "complete": False})]
    found += [_event("TableBackfill", 61, {"table": "shop.items", "complete": True}), marker(61)]
    return [*found, *_objects(62), marker(69), *_drops(70), marker(70 + DROPS_KEPT + 4)]


def _objects(at: int) -> list[bytes]:
    """Partitions and a database in several states, and a list that is whole."""
    partition = {"kind": "partition", "table_id": 7, "name": '["2024","ü"]', "lo": "", "hi": ""}
    image = {"change": "image", "image": b'{"values":["2024"]}', "struct": b"\x0b\x00\x02\x00\x00\x00\x01d\x00"}
    nothing = {"image": None, "struct": None}
    whole = {"kind": "partition", "table_id": 7, "lo": "", "reason": ""}
    database = {"kind": "database", "table_id": 0, "name": '["d"]', "lo": "", "hi": ""}
    table = {"table_id": 7, "name": "d.t", "kind": "transactional", "txn": 0, "write_id": 0, "staged": False}
    table |= {"change": "image", "image": b"{}", "struct": image["struct"], "write_ids": None}
    return [
        _event("CatalogSet", at, whole | {"change": "begun"}),
        _event("CatalogObject", at + 1, partition | image),
        _event("CatalogObject", at + 2, partition | {"name": '["2025","x"]', "change": "dropped"} | nothing),
        _event("CatalogSet", at + 3, whole | {"change": "complete"}),
        _event("CatalogObject", at + 4, database | image),
        _event("CatalogObject", at + 5, database | {"name": '["e"]', "change": "written"} | nothing),
        _event("CatalogSet", at + 6, whole | {"kind": "function", "table_id": 0, "change": "void", "reason": "why"}),
        _event("TableImage", at + 7, table | {"lo": gtid(69), "hi": gtid(69)}),
    ]


def _drops(at: int) -> list[bytes]:
    """More dropped functions than keep an entry, and a dropped table with a partition."""
    of_function = {"kind": "function", "table_id": 0, "change": "dropped", "image": None, "struct": None}
    table = {"table_id": 9, "name": "d.gone", "kind": "external", "txn": 0, "write_id": 0, "staged": False}
    table |= {"image": b"{}", "struct": None, "write_ids": None, "lo": "", "hi": ""}
    partition = {"kind": "partition", "table_id": 9, "name": '["x"]', "change": "image", "image": b"{}", "struct": None}
    functions = [
        _event("CatalogObject", at + each, of_function | {"name": f'["d","f{each}"]', "lo": "", "hi": ""})
        for each in range(DROPS_KEPT + 2)
    ]
    return [
        *functions,
        _event("TableImage", at + DROPS_KEPT + 2, table | {"change": "created"}),
        _event("CatalogObject", at + DROPS_KEPT + 3, partition | {"lo": "", "hi": ""}),
        _event("TableImage", at + DROPS_KEPT + 4, table | {"change": "dropped", "image": None}),
    ]


def keys_ever() -> set[bytes]:
    """The keys of the state after each record: some of them go again."""
    folded = Folded()
    found: set[bytes] = set()
    for record in messages():
        folded.fold(record)
        found |= folded.entries.keys() | head_entries(folded.state.head).keys()
    return found


def write_store(data_dir: Path, checkpoint: Path | None = None) -> Items:
    """A live store of the history, in several commits; its items. ``checkpoint``: where a copy of it is left."""
    store = PartitionStore.open(data_dir, keyspace=KEYSPACE, partition=0, topic_id=TOPIC_ID)
    records: list[tuple[int, bytes | None]] = list(enumerate(messages()))
    for at in range(0, len(records), 13):
        store.fold(records[at : at + 13])
        store.commit()
    if checkpoint is not None:
        checkpoint.parent.mkdir(parents=True)
        store.checkpoint(checkpoint)
    items = list(store.items())
    store.close()
    return items


def write_rebuild(root: Path) -> None:
    """What `freshet rebuild --to` writes, without Spark around it."""
    root.mkdir()
    with FoldTask(KEYSPACE, TOPIC_ID, str(root), {0: 0}, {0: 0}).open(0) as fold:
        records = messages()
        fold.fold(*in_arrow(range(len(records)), records))
        summary = fold.finish()
    ends = {0: len(records)}
    write_report(
        root, RebuildReport(KEYSPACE, f"freshet.{KEYSPACE}.events", TOPIC_ID, FOLD_VERSION, ends, (summary,), 1.5)
    )


def unpack(name: str, into: Path) -> Path:
    """A kept fixture's directory, unpacked."""
    with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
        archive.extractall(into, filter="data")
    return into


def expected(name: str) -> dict[str, Any]:
    """What a kept fixture holds: ``fold_version``, ``digest``, ``count``, ``items`` as base64 pairs."""
    found: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return found


CURRENT = f"v{FORMAT_VERSION}" + (f"-fold{FOLD_VERSION}" if FOLD_VERSION > 1 else "")
"""The fixture of the current format and fold."""


def main() -> None:
    """Writes the fixture of the current format and fold version."""
    name = CURRENT
    if (FIXTURES / f"{name}.tar.gz").exists():
        raise SystemExit(f"{name} is kept, and not written again")
    FIXTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "root"
        items = write_store(root / "live", root / "checkpoints" / KEYSPACE / "0" / "1")
        write_rebuild(root / "rebuild")
        for unneeded in ("LOG", "LOCK", "lock"):
            for file in root.rglob(f"{unneeded}*"):
                file.unlink() if file.is_file() else shutil.rmtree(file)
        with tarfile.open(FIXTURES / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(root, ".", filter=_plain)
        store = partition_directory(root / "live", KEYSPACE, 0)
        print(sorted(str(path.relative_to(store)) for path in store.rglob("*")))
    (FIXTURES / f"{name}.json").write_text(json.dumps(_described(items), indent=0) + "\n")


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """A tar filter that removes owner and time."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _described(items: Items) -> dict[str, Any]:
    digest, count = digest_items(items)
    pairs = [[b64encode(each).decode() for each in pair] for pair in items]
    return {"fold_version": FOLD_VERSION, "digest": digest, "count": count, "items": pairs}


if __name__ == "__main__":
    main()
