"""What happens while a commit's file is added to RocksDB: looks at indexes, and failures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consumers.store.errors import DiskFullError
from stream.wire.events import VALUE, VOID
from tests.consumers.histories import frame, start
from tests.consumers.store.test_indexes import BY_NAME, fold, having, item, named, open_at


class Interrupted:
    """A database at which something happens just before files are added to it."""

    def __init__(self, db: Any, happens: Callable[[], object]) -> None:
        self._db, self._happens = db, happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def ingest_external_file(self, *files: Any) -> None:
        """As the database's own."""
        self._happens()
        self._db.ingest_external_file(*files)


@pytest.mark.parametrize("kind", [VALUE, VOID])
def test_who_looks_while_a_commit_is_written_finds_its_rows_afterwards(tmp_path: Path, kind: int) -> None:
    """The place in the files of before is given up, and so is that none of them has a row without an image."""
    store = open_at(tmp_path, BY_NAME)
    fold(store, start(), named((1, "a")))
    store.commit()
    fold(store, frame([(item(2), kind, b'{"name":"b"}' if kind == VALUE else b"", 3)]))
    looks: list[list[bytes] | None] = []
    store._rocks._db = Interrupted(store._rocks._db, lambda: looks.append(having(store, "b")))
    store.commit()
    assert looks == [[item(2)]]
    assert having(store, "b") == [item(2)]
    store.close()


def test_a_database_that_failed_to_take_a_file_is_opened_again_for_the_next_one(tmp_path: Path) -> None:
    """RocksDB refuses all writes from then on. Nothing is lost, and who reads meanwhile is answered."""
    store = open_at(tmp_path)
    fold(store, start(), named((1, "a")))
    store.commit()
    fold(store, named((2, "b"), first=3))

    def fail() -> None:
        raise OSError(28, "No space left on device")

    store._rocks._db = Interrupted(store._rocks._db, fail)
    with pytest.raises(DiskFullError):
        store.commit()
    assert (store.get(item(1)) is None, store.get(item(2)) is None) == (False, False)
    commit = store.commit()
    assert commit is not None
    assert commit.offset == 3
    store.close()
    store = open_at(tmp_path)
    assert store.get(item(2)) is not None
    store.close()
