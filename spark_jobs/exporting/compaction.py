"""Few Parquet files of many small ones, a day's directory at a time.

A reader lists a directory and knows of no commit. So a day's new directory is made beside it, and the two are exchanged
in one step of the file system: whoever lists a day finds each row once, before, after, and if the process is killed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from consumers.store.manifest import sync_directory

log = structlog.get_logger(__name__)

SMALL_BYTES: Final = 32 << 20
"""A file below this size is small."""
FILES_MIN: Final = 4
"""So many small files of a day are worth the work."""
MERGED_BYTES: Final = 256 << 20
"""Of the small files that become one."""
GROUP_BYTES: Final = 64 << 20
"""Of the rows, in memory, that are written as one row group."""
_HERE: Final = -100
_EXCHANGE: Final = 2
_UNABLE: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def compact_days(root: Path, days: Iterable[str], scratch: Path) -> int:
    """Compacts directories below ``root``; how many. ``scratch``: on the same file system, for this call alone.

    Raises ``OSError``. A file system that can't exchange directories keeps its small files, which is logged.
    """
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    done = 0
    try:
        for day in sorted(days):
            with suppress(FileNotFoundError):  # somebody has removed the day, or files of it
                done += _compact(root / day, scratch / secrets.token_hex(8))
    except OSError as error:
        if error.errno not in _UNABLE:
            raise
        log.warning("small files stay: this file system can't exchange directories", directory=str(root))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return done


def _compact(day: Path, fresh: Path) -> bool:
    files = sorted(day.iterdir())
    small = [file for file in files if file.suffix == ".parquet" and file.stat().st_size < SMALL_BYTES]
    if len(small) < FILES_MIN:
        return False
    fresh.mkdir()
    for file in set(files) - set(small):
        os.link(file, fresh / file.name)
    for group in _alike(small):
        if len(group) == 1:
            os.link(group[0], fresh / group[0].name)
        else:
            _merge(group, fresh / f"{group[0].stem.rpartition('-')[0]}-{secrets.token_hex(8)}.parquet")
    sync_directory(fresh)
    if sorted(day.iterdir()) != files:
        return False  # somebody moves files there
    exchange(fresh, day)
    sync_directory(day.parent)
    return True


def _alike(files: Sequence[Path]) -> Iterator[list[Path]]:
    """Files of equal columns, in the log's order, no more of them than `MERGED_BYTES`."""
    by_columns: dict[bytes, list[Path]] = defaultdict(list)
    for file in files:
        by_columns[pq.read_schema(file).serialize().to_pybytes()].append(file)
    for alike in by_columns.values():
        group: list[Path] = []
        size = 0
        for file in alike:
            group.append(file)
            size += file.stat().st_size
            if size >= MERGED_BYTES:
                yield group
                group, size = [], 0
        if group:
            yield group


def _merge(files: Sequence[Path], target: Path) -> None:
    waiting: list[pa.Table] = []
    with pq.ParquetWriter(target, pq.read_schema(files[0]), compression="zstd") as writer:
        for file in files:
            waiting.append(pq.ParquetFile(file).read())
            if sum(each.nbytes for each in waiting) >= GROUP_BYTES:
                writer.write_table(pa.concat_tables(waiting))
                waiting = []
        if waiting:
            writer.write_table(pa.concat_tables(waiting))
    with open(target, "rb") as written:
        os.fsync(written.fileno())


def exchange(one: Path, other: Path) -> None:
    """Exchanges two directories in one step. Raises ``OSError``, with EINVAL or ENOSYS where that can't be done."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if libc.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))
