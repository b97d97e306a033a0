"""``python -m tests.data_at_rest.keep_snapshot``: keeps a snapshot of the current format and fold version.

Run it once for each of them. It writes a new fixture; existing ones never change.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from consumers.fold.state import FOLD_VERSION
from consumers.snapshots.manifest import MANIFEST_NAME, SNAPSHOT_FORMAT, encode_manifest
from consumers.snapshots.places import Place
from consumers.snapshots.writing import write_snapshot
from consumers.store.digest import digest_items
from tests.data_at_rest.history import FIXTURES, KEYSPACE, _plain, write_store

KEPT_SNAPSHOT: Final = f"snapshot{SNAPSHOT_FORMAT}-fold{FOLD_VERSION}"
"""The fixture of the current format and fold."""
NAME: Final = "20260101T000000Z-kept"
FILE_BYTES: Final = 2_000
"""Several files."""


def main() -> None:
    """Writes the fixture."""
    if (FIXTURES / f"{KEPT_SNAPSHOT}.tar.gz").exists():
        raise SystemExit(f"{KEPT_SNAPSHOT} is kept, and not written again")
    with tempfile.TemporaryDirectory() as directory:
        root, place = Path(directory), Place(f"{directory}/place")
        items = write_store(root / "live", root / "checkpoint" / "0")
        made = write_snapshot(
            place, {0: root / "checkpoint" / "0"}, made_from="rebuild", verified=True, file_bytes=FILE_BYTES
        )
        (root / "place" / KEYSPACE / made.name).rename(root / "place" / KEYSPACE / NAME)
        kept = msgspec.structs.replace(made, name=NAME, created="2026-01-01T00:00:00Z")
        (root / "place" / KEYSPACE / NAME / MANIFEST_NAME).write_bytes(encode_manifest(kept))
        with tarfile.open(FIXTURES / f"{KEPT_SNAPSHOT}.tar.gz", "w:gz") as archive:
            archive.add(root / "place", ".", filter=_plain)
    digest, count = digest_items(items)
    told = {"fold_version": FOLD_VERSION, "digest": digest, "count": count, "offset": kept.partitions[0].offset}
    (FIXTURES / f"{KEPT_SNAPSHOT}.json").write_text(json.dumps(told, indent=0) + "\n")


if __name__ == "__main__":
    main()
