"""What happens while a commit's file is added to RocksDB: looks at indexes, and failures."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.store.errors import DiskFullError, DiskIOError
from consumers.store.rocks import database
from consumers.store.rocks.database import IN_DOUBT_NAME
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
    in_doubt = store.directory / IN_DOUBT_NAME
    assert in_doubt.exists(), "RocksDB may have taken it all the same"
    commit = store.commit()
    assert commit is not None
    assert (commit.offset, in_doubt.exists()) == (3, False)
    store.close()
    store = open_at(tmp_path)
    assert store.get(item(2)) is not None
    store.close()


def test_a_look_that_is_under_way_is_waited_for_when_the_database_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps the closed database open, which RocksDB takes for another process. One that never ends ends no process:
    the commit is tried again, as after any error of the disk.
    """
    store = open_at(tmp_path)
    fold(store, start(), named((1, "a")))
    store.commit()
    rocks, seconds = store._rocks, count()
    look: Any = rocks.scan()
    assert next(look)
    clock = SimpleNamespace(monotonic=lambda: 0.4 * next(seconds), sleep=lambda _: None)
    monkeypatch.setattr(database, "time", clock)
    with pytest.raises(DiskIOError, match="still read"):
        rocks.reopen()
    with pytest.raises(DiskIOError):
        store.get(item(1))
    clock.sleep = lambda _: look.close()
    rocks.ensure_open()
    assert store.get(item(1)) is not None
    fold(store, frame([(item(2), VALUE, b"{}", 3)]))
    store.commit()
    store.close()
