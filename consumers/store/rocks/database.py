"""RocksDB as the store uses it: open, get, scan, ingest. Every error becomes a `StoreError`.

A commit ingests one sorted file (docs/decisions/0003-ingested-files.md); nothing is ever put. So RocksDB's write-ahead
log and memtable are not used.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from threading import Lock
from typing import Any, Final

import structlog
from rocksdict import (
    AccessType,
    Checkpoint,
    DbClosedError,
    IngestExternalFileOptions,
    Rdict,
)

from consumers.fold.state import OFFSET_KEY
from consumers.store.errors import DiskIOError, StoreCorruptError, StoreError, StoreLockedError, store_error
from consumers.store.index import INDEX, INDEX_END
from consumers.store.memtable import Memtable
from consumers.store.rocks import tables
from consumers.store.rocks.small_files import check_directory, manifest_before, name_manifest
from consumers.store.rocks.tables import NO_ENTRIES, NO_KEYS, build_table

log = structlog.get_logger(__name__)

IN_DOUBT_NAME: Final = "in-doubt.sst"
"""In the store directory: the SST of a failed commit, kept until a commit succeeds."""
_MISSING_SST: Final = re.compile(r"/(\d{6,}\.sst): No such file or directory")

_LEVELS: Final = 7
_LOOK_ENDS_S: Final = 1.0
"""How long `Rocks.reopen` waits for a look of another thread, whose iterator keeps the closed database open."""
_LOOK_POLL_S: Final = 0.005


class Rocks:
    """An open RocksDB directory. Methods raise `consumers.store.errors.StoreError`."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._read_only = read_only
        self._reopening = Lock()
        self._needs_reopen = False
        """An ingest failed, so RocksDB may refuse all writes until it is opened again."""
        self._in_doubt = path.with_name(IN_DOUBT_NAME)
        self._must_keep_scratch = False
        """The SST of a failed commit has not been renamed to `IN_DOUBT_NAME` yet."""
        self._committed: bytes | None = None
        """`OFFSET_KEY`'s value in the last commit of this process."""
        self._reopen_error: StoreError | None = None
        """Why `reopen` failed. Reads fail with it until the next ingest tries again."""
        self._files = 0
        """Grows when the database has other files, or is closed: what looked at the ones before is out of date."""
        self._place: tuple[int, Any] | None = None
        """`_files` and an iterator over them, for `scan_index`. It keeps them on disk, and the database open."""
        self._db = self._open()

    def _open(self) -> Rdict:
        if self._read_only and not (self.path / "CURRENT").exists():
            raise StoreCorruptError(f"{self.path} is not a RocksDB directory", hint="name a store directory")
        self._check()
        try:
            return self._connect()
        except StoreCorruptError:
            if self._read_only:
                raise
        self._unlink_in_doubt()  # a kill may have left it in the place of another
        try:
            return self._connect_with_sst_in_doubt()
        except StoreCorruptError as error:
            if not _MISSING_SST.search(str(error)):
                raise
            return self._connect_as_before(error)

    def _check(self) -> None:
        try:
            check_directory(self.path)
        except OSError as error:
            raise store_error(error, str(self.path)) from error

    def _connect_with_sst_in_doubt(self) -> Rdict:
        """As `_connect`. If an SST is missing, the one in doubt takes its place.

        If RocksDB can't sync its manifest, it deletes the SST that was to be ingested, but the manifest may name it all
        the same. If the SST in doubt is another one, RocksDB notices by the size and the unique id in its manifest.
        """
        try:
            return self._connect()
        except StoreCorruptError as error:
            missing = error
        named = _MISSING_SST.search(str(missing))
        if named is None or not self._in_doubt.exists():
            raise missing
        sst = self.path / named[1]
        try:
            os.link(self._in_doubt, sst)
        except OSError as error:
            raise store_error(error, str(self.path)) from error
        try:
            db = self._connect()
        except StoreError as error:
            with contextlib.suppress(OSError):
                sst.unlink()
            raise (missing if isinstance(error, StoreCorruptError) else error) from None
        log.warning("restored the file of a commit in doubt", place=str(self.path), table=named[1])
        return db

    def _connect_as_before(self, missing: StoreCorruptError) -> Rdict:
        """Opens the database as of the manifest before, since the SST of ``missing`` is not there.

        If the directory can't be synced after ``CURRENT`` named a new manifest, RocksDB deletes the SST that a
        compaction made. But the files that it was made of are still there, and the manifest before names them. That one
        may be older than the last commit: `reopen` looks whether it is.
        """
        manifests = manifest_before(self.path)
        if manifests is None:
            raise missing
        current, older = manifests
        try:
            name_manifest(self.path, older)
            self._check()
            db = self._connect_with_sst_in_doubt()
        except StoreError as error:
            with contextlib.suppress(StoreError):
                name_manifest(self.path, current)
            raise (missing if isinstance(error, StoreCorruptError) else error) from None
        log.warning("opened as of the manifest before", place=str(self.path), manifest=older)
        return db

    def _unlink_in_doubt(self) -> None:
        """Takes the SST in doubt out of the database's directory."""
        with contextlib.suppress(OSError):
            for sst in self.path.glob("*.sst"):
                if sst.samefile(self._in_doubt):
                    sst.unlink()

    def _connect(self) -> Rdict:
        access = AccessType.read_only(False) if self._read_only else AccessType.read_write()
        # Without explicit column families rocksdict reads the OPTIONS file. That file has no checksum (a flipped byte
        # crashed the process), and its options lack our cache.
        options = tables.store_options(read_only=self._read_only)
        try:
            return Rdict(str(self.path), options, {"default": options}, access)
        except Exception as error:
            raise store_error(error, str(self.path)) from error

    def get(self, key: bytes) -> bytes | None:
        """The value of ``key``, its checksum verified."""
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            if not _is_closed(error):
                raise store_error(error, str(self.path)) from error
            try:
                value = self._current_db().get(key)
            except Exception as again:
                raise self._read_error(again) from again
        return value

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """As `get` of each key. RocksDB lets the interpreter go meanwhile, and a key costs a third."""
        try:
            values: list[bytes | None] = self._db.get(keys)
        except Exception as error:
            if not _is_closed(error):
                raise store_error(error, str(self.path)) from error
            return list(map(self.get, keys))
        return values

    def _current_db(self) -> Rdict:
        """The database; waits while it is being reopened."""
        with self._reopening:
            return self._db

    def _read_error(self, error: Exception) -> StoreError:
        closed_by = self._reopen_error
        if closed_by is not None and _is_closed(error):
            return store_error(closed_by, str(self.path))
        return store_error(error, str(self.path))

    def scan(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with ``start`` ≤ key (< ``end`` if given) in key order, as of the call, without those of indexes."""
        return _scan(self._iterator(start), end, str(self.path))

    def scan_index(self, start: bytes, limit: int) -> list[bytes]:
        """The first keys of entries of indexes that begin with ``start``, in key order, at most ``limit``.

        For one thread: it keeps its iterator while no file is added, since making one takes longer than the look.
        """
        place, found = self._kept_iterator(start), list[bytes]()
        try:
            while len(found) < limit and place.valid() and (key := place.key()).startswith(start):
                found.append(key)
                place.next()
            place.status()
        except Exception as error:
            place = self._place = None  # else they would keep the database open
            raise store_error(error, str(self.path)) from error
        return found

    def _kept_iterator(self, start: bytes) -> Any:
        """An iterator at the first key from ``start`` on, which sees all files that were there before the call."""
        kept, files = self._place, self._files
        if kept is not None and kept[0] == files:
            place = kept[1]
            place.seek(start)
            return place
        place = self._iterator(start)
        self._place = files, place
        if self._files != files:  # another thread has closed the database, perhaps
            self._place = None
        return place

    def _let_go(self) -> None:
        """Lets the files go that `scan_index` has looked at. It looks at those of now next time."""
        self._files += 1
        self._place = None

    def keys_below(self, begins: Iterable[bytes], start: bytes = b"") -> Iterator[bytes]:
        """The keys from ``start`` on that begin with one of ``begins``, in the order of those, as of the first one."""
        place = None
        try:
            for begin in begins:
                if place is None:
                    place = self._iterator(max(begin, start))  # half as dear as its items, most of which is to begin
                else:
                    place.seek(max(begin, start))
                while place.valid() and (key := place.key()).startswith(begin):
                    yield key
                    place.next()
                place.status()
        except StoreError:
            raise
        except Exception as error:
            place = None  # else the traceback's frame would keep the database open
            raise store_error(error, str(self.path)) from error

    def _iterator(self, start: bytes) -> Any:
        """An iterator at the first key from ``start`` on, which sees the database as it is now.

        Only an iterator does: those of a snapshot of rocksdict see what is ingested before they begin.
        """
        place = None
        try:
            place = self._current_db().iter()
            place.seek(start)
        except Exception as error:
            place = None  # else the traceback's frame would keep the database open
            raise self._read_error(error) from error
        return place

    def ingest(
        self,
        entries: Mapping[bytes, bytes],
        scratch: Path,
        of_indexes: Mapping[bytes, bytes | None] = NO_ENTRIES,
        gone: Set[bytes] = NO_KEYS,
    ) -> int:
        """Adds ``entries`` to the store in one atomic, durable step; returns the file's size in bytes.

        ``of_indexes``: entries of indexes, which go with them; None: it is removed. ``gone``: keys that have no entry
        after it. The file is built at ``scratch``, which must be on the same file system.
        """
        has_tried = False
        try:
            if self._must_keep_scratch:
                self._keep_scratch(scratch)
            scratch.unlink(missing_ok=True)  # may be a hard link to a live SST, so it must not be truncated
            size = build_table(entries, scratch, of_indexes, gone | self._hidden_by(entries))
            options = IngestExternalFileOptions()
            options.set_move_files(True)
            options.set_allow_blocking_flush(False)
            if self._needs_reopen:
                self.reopen()
            self._needs_reopen = has_tried = True
            self._place = None  # a full disk may need the space of files that are no longer in use
            try:
                self._db.ingest_external_file([str(scratch)], options)
            finally:
                self._let_go()
            self._needs_reopen = False
            self._committed = entries.get(OFFSET_KEY) or self._committed
        except Exception as error:
            if has_tried:  # else the SST of an earlier attempt is the one in doubt
                self._must_keep_scratch = True
                with contextlib.suppress(OSError):
                    self._keep_scratch(scratch)
            raise store_error(error, str(self.path)) from error
        with contextlib.suppress(OSError):
            self._in_doubt.unlink()
        return size

    def ingest_files(self, files: Sequence[Path]) -> None:
        """Adds sorted files whose ranges do not overlap, in one atomic, durable step. They are moved into the store."""
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        options.set_allow_blocking_flush(False)
        try:
            self._db.ingest_external_file([str(file) for file in files], options)
        except Exception as error:
            raise store_error(error, str(self.path)) from error

    def _hidden_by(self, entries: Mapping[bytes, bytes]) -> set[bytes]:
        """The keys whose entries ``entries`` makes go together, by what they begin with."""
        if not isinstance(entries, Memtable) or not entries.gone:
            return set()
        return {key for key in self.keys_below(sorted(entries.gone)) if key not in entries.entries}

    def _keep_scratch(self, scratch: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.replace(scratch, self._in_doubt)
        self._must_keep_scratch = False

    def checkpoint(self, path: Path) -> None:
        """Copies the store as of now to ``path`` (hard links), which must not exist."""
        try:
            Checkpoint(self._current_db()).create_checkpoint(str(path))
        except Exception as error:
            raise store_error(error, str(path)) from error

    def ensure_open(self) -> None:
        """Opens the database if the last `reopen` could not. Raises as that."""
        if self._reopen_error is not None:
            self.reopen()

    def reopen(self) -> None:
        """Closes and opens the database, which ends RocksDB's background-error state. Reads wait meanwhile.

        Called once a whole file could be written again.
        """
        with self._reopening:
            self._reopen_error = None
            try:
                self.close()
            except StoreError as error:  # it is closed nevertheless
                log.warning("store closed with an error", place=str(self.path), code=error.code, reason=str(error))
            try:
                self._db = self._open_again()
                self._check_commit()
            except StoreError as error:
                self._reopen_error = error
                raise

    def _open_again(self) -> Rdict:
        """As `_open`, once no look of another thread holds the database that was just closed."""
        deadline = time.monotonic() + _LOOK_ENDS_S
        while True:
            try:
                return self._open()
            except StoreLockedError as error:  # by this process: another one would have the store's directory
                if time.monotonic() > deadline:
                    why = f"{self.path}: it is still read, so it can't be opened again after an error"
                    raise DiskIOError(why, hint="the consumer tries again by itself") from error
            time.sleep(_LOOK_POLL_S)

    def _check_commit(self) -> None:
        """Raises `StoreCorruptError`, with the database closed, if it lacks the last commit of this process."""
        if self._committed is None:
            return
        try:
            found = self._db.get(OFFSET_KEY)
        except Exception as error:
            raise store_error(error, str(self.path)) from error
        if found is None or int(found) < int(self._committed):
            self.close()
            raise StoreCorruptError(f"{self.path} lacks a commit that was durable", hint="it is folded again")

    def property(self, name: str) -> int:
        """An integer property such as ``rocksdb.estimate-num-keys``; 0 if there is none."""
        try:
            return int(self._current_db().property_value(name) or 0)
        except (DbClosedError, RuntimeError, ValueError, TypeError):
            return 0

    def estimated_keys(self, in_each_file: int, in_all: int) -> int:
        """The estimated number of keys without ``in_all``, and ``in_each_file``, which each commit writes again.

        RocksDB adds up its files. Those of level 0 each hold a commit; below it a level holds a key once.
        """
        files = [self.property(f"rocksdb.num-files-at-level{level}") for level in range(_LEVELS)]
        written = files[0] + sum(map(bool, files[1:]))
        return self.property("rocksdb.estimate-num-keys") - written * in_each_file - (in_all if written else 0)

    def close(self) -> None:
        """Closes; safe to repeat."""
        self._let_go()
        try:
            self._db.close()
        except DbClosedError:
            return
        except Exception as error:
            raise store_error(error, str(self.path)) from error
        finally:
            self._let_go()  # of a look that began before it was closed


def _is_closed(error: Exception) -> bool:
    """Whether the database is closed, or being closed by another thread (rocksdict then says "borrowed")."""
    return isinstance(error, DbClosedError) or (isinstance(error, RuntimeError) and "borrowed" in str(error))


def _scan(place: Any, end: bytes | None, path: str) -> Iterator[tuple[bytes, bytes]]:
    """Yields the pairs from an iterator's place on, without those of indexes. Raises `StoreError` if it ended early.

    An iterator ends at a damaged block as it does behind the last key; its status tells which.
    """
    try:
        while place.valid():
            key = place.key()
            if end is not None and key >= end:
                return
            if key.startswith(INDEX):
                place.seek(INDEX_END)
                continue
            yield key, place.value()
            place.next()
        place.status()
    except Exception as error:
        place = None  # else the traceback's frame would keep the database open
        raise store_error(error, path) from error


def disk_bytes(directory: Path) -> int:
    """Total bytes of the files under ``directory``; files that vanish or can't be inspected are skipped."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total
