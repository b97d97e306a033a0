"""Opens, changes and crashes a partition's store for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from consumers.fold.state import Changes, Lineage
from consumers.store.store import PartitionStore

LINEAGE = Lineage(1, 0, 0, "", 0, "MariaDB/0-1-0")


def open_at(directory: Path, topic_id: str = "topic-1", layout: str = "") -> PartitionStore:
    """The store that the tests of a store use."""
    return PartitionStore.open(directory, keyspace="shop", partition=3, topic_id=topic_id, layout=layout)


def crash(store: PartitionStore) -> None:
    """Closes without a commit, as a kill would."""
    store.close(commit=False)


def change(offset: int, entries: dict[bytes, bytes], **more: Any) -> Changes:
    """Changes of the message before ``offset``."""
    return Changes(offset, entries, {"shop/0": LINEAGE._replace(ordinal=offset)})._replace(**more)
