"""The options of a store's RocksDB, and the sorted files (SSTs) that a commit ingests."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from pathlib import Path
from typing import Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DataBlockIndexType,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    SstFileWriter,
)

from consumers.fold.state import is_head_key
from consumers.store.errors import store_error
from consumers.store.index import INDEX
from consumers.store.memtable import Memtable
from consumers.store.sorting import sorted_places

BLOCK_CACHE_BYTES: Final = 64 << 20
"""One cache for all stores of a process."""

VIEW_CACHE_BYTES: Final = 8 << 20
"""For each read-only store. A cache of its own makes it read what is on disk, not what the owner has cached."""

_LEVEL_ZERO_FILES: Final = 12
_TARGET_FILE_BYTES: Final = 32 << 20

_shared_cache: list[Cache] = []


def _table_options(read_only: bool) -> BlockBasedOptions:
    if not _shared_cache:
        _shared_cache.append(Cache(BLOCK_CACHE_BYTES))
    table = BlockBasedOptions()
    table.set_block_cache(Cache(VIEW_CACHE_BYTES) if read_only else _shared_cache[0])
    table.set_block_size(4096)
    table.set_bloom_filter(10, False)
    table.set_checksum_type(ChecksumType.xxh3())
    table.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    table.set_data_block_hash_ratio(0.75)
    table.set_format_version(6)
    return table


def store_options(*, read_only: bool = False) -> Options:
    """Options of a store: small files arrive at level 0; universal compaction merges those of similar size."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    options.set_block_based_table_factory(_table_options(read_only))
    options.set_compression_type(DBCompressionType.lz4())
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_level_zero_file_num_compaction_trigger(_LEVEL_ZERO_FILES)
    options.set_target_file_size_base(_TARGET_FILE_BYTES)
    options.set_max_background_jobs(2)
    options.set_write_buffer_size(1 << 20)
    options.set_max_open_files(512)
    options.set_keep_log_file_num(3)
    options.set_max_manifest_file_size(256 << 10)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    return options


NO_ENTRIES: Final[Mapping[bytes, bytes]] = {}
NO_KEYS: Final[Set[bytes]] = frozenset()


def write_sorted(pairs: Iterable[tuple[bytes, bytes]], path: Path) -> int:
    """Writes a sorted file of pairs in key order, synced, for `Rocks.ingest_files`; returns its size in bytes."""
    try:
        writer = SstFileWriter(store_options())
        writer.open(str(path))
        for key, value in pairs:
            writer[key] = value
        writer.finish()
        return int(writer.file_size())
    except Exception as error:
        raise store_error(error, str(path)) from error


def build_table(
    entries: Mapping[bytes, bytes],
    path: Path,
    of_indexes: Mapping[bytes, bytes | None] = NO_ENTRIES,
    gone: Set[bytes] = NO_KEYS,
) -> int:
    """Writes a durable sorted file of ``entries``; returns its size in bytes. ``gone``: keys that go.

    So do those of ``of_indexes`` that have None.

    It is built in memory, because rocksdict holds the GIL while RocksDB syncs a file: on a busy disk that can block
    reads for a tenth of a second. Python releases the GIL while it copies and syncs. Other systems than Linux have no
    files in memory; there the file is built in place.
    """
    if sys.platform != "linux":
        return _write_table(entries, str(path), of_indexes, gone)
    with contextlib.ExitStack() as stack:
        memory = os.memfd_create(path.name)
        stack.callback(os.close, memory)
        size = _write_table(entries, f"/proc/self/fd/{memory}", of_indexes, gone)
        disk = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        stack.callback(os.close, disk)
        sent = 0
        while sent < size:
            more = os.sendfile(disk, memory, sent, size - sent)
            if not more:
                raise OSError(errno.EIO, f"only {sent} of {size} bytes of {path.name} could be copied")
            sent += more
        os.fdatasync(disk)
    return size


def _write_table(
    entries: Mapping[bytes, bytes], path: str, of_indexes: Mapping[bytes, bytes | None], gone: Set[bytes]
) -> int:
    """Writes an SST of ``entries`` with RocksDB, synced; returns its size in bytes. ``gone``: keys that go."""
    writer = SstFileWriter(store_options())
    writer.open(path)
    keys = list(entries)
    places = sorted_places(keys)
    if gone:
        places = [place for place in places if keys[place] not in gone]
    keys = [keys[place] for place in places]
    pairs = zip(keys, _entries_at(entries, places), strict=True)
    at = bisect_left(keys, INDEX)
    without = sorted(gone, reverse=True)

    def write(of_state: Iterable[tuple[bytes, bytes]], end: bytes | None) -> None:
        for key, entry in of_state:
            while without and without[-1] < key:
                del writer[without.pop()]
            if entry or is_head_key(key):
                writer[key] = entry
            else:
                del writer[key]
        while without and (end is None or without[-1] < end):
            del writer[without.pop()]

    write(islice(pairs, at), INDEX)
    of_index, values = list(of_indexes), list(of_indexes.values())
    for place in sorted_places(of_index):
        value = values[place]
        if value is None:
            del writer[of_index[place]]
        else:
            writer[of_index[place]] = value
    write(pairs, None)
    writer.finish()
    return int(writer.file_size())


def _entries_at(entries: Mapping[bytes, bytes], places: Sequence[int]) -> Iterator[bytes]:
    """The entries of the keys at ``places`` of all keys."""
    if isinstance(entries, Memtable):
        return entries.entries_at(places)
    return map(list(entries.values()).__getitem__, places)
