"""Planted bugs in the byte cache and its front: which bytes a reader of a file gets."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, Return, always, files, leave_out, never
from serving.bytecache.disk.blocks import clear_missing
from serving.bytecache.disk.directory import Directory
from serving.bytecache.disk.extents import Extents
from serving.bytecache.disk.shard import Shard
from serving.bytecache.disk.space import write_together
from serving.bytecache.filesystem.remote import _settled
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.fetching import Fetch
from serving.bytecache.reading.flights import Flights
from serving.bytecache.reading.plan import blocks_of
from serving.bytecache.reading.replay import touches
from serving.http.bytes.ranges import ranges_of
from serving.http.bytes.routes import _answer

BUGS: Final = (
    files(
        "file_is_not_asked_for_after_a_fetch",
        "a file that was replaced while it was fetched is kept, and given, as what it was",
        Return(Fetch._check_version, "None"),
    ),
    files("young_file_is_settled", "a file of this second is kept, whatever follows in it", Return(_settled, "True")),
    files(
        "any_version_of_the_same_size",
        "a file of the same length is taken for the same version",
        Replace(Directory.enter, "(known.version, known.size) == (version, size)", "known.size == size"),
    ),
    files(
        "granule_is_not_verified",
        "a small read gives what the disk has",
        never(Extents._checked, '_xxh3(data, seed & MASK) != int.from_bytes(_pread(self._sums, 8, place), "little")'),
    ),
    files(
        "later_blocks_are_not_verified",
        "a long read is good if its first block is",
        Replace(Extents._verify, "at = end", "return -1"),
    ),
    files(
        "room_is_given_back_on_paper_only",
        "what leaves the cache stays on the disk",
        leave_out(Shard._punch, "punch_hole(...)"),
    ),
    files(
        "extents_that_a_death_left_grown",
        "blocks that a killed process had written without a head stay on the disk",
        Return(clear_missing, "None"),
    ),
    files(
        "rest_of_a_short_write",
        "what the kernel has not taken of blocks that are written together is never written",
        leave_out(write_together, "if written < any_length:\n    write_all(...)"),
    ),
    files(
        "last_block_is_left_out",
        "a range that ends just behind a block's beginning lacks that block",
        Replace(blocks_of, "((end - 1) >> BLOCK_BITS) + 1", "end >> BLOCK_BITS"),
    ),
    files(
        "flight_of_another_file",
        "readers of two files wait for the same fetch",
        Replace(Flights.claim, "self._under_way.get((file, block))", "self._under_way.get((0, block))"),
        Replace(Flights.claim, "Flight([(file, block) for block in own])", "Flight([(0, block) for block in own])"),
    ),
    files(
        "read_into_gives_no_more_than_an_extent",
        "memory is filled from the first piece only",
        Replace(
            ByteCache.read_into,
            "all(any_read for low, high in cut)",
            "all(any_read for low, high in cut[:1])",
        ),
    ),
    files(
        "range_without_its_last_byte", "a range ends one byte early", Replace(ranges_of, "int(last) + 1", "int(last)")
    ),
    files(
        "suffix_from_the_beginning",
        "the last bytes of a file are asked for, and the first ones are given",
        Replace(ranges_of, "max(0, size - int(last))", "0"),
    ),
    files(
        "if_range_of_any_version",
        "a part of another version is given to who has begun with one",
        Replace(
            _answer,
            "given.range and (not given.if_range or given.if_range.strip() == etag != '')",
            "given.range",
        ),
    ),
    files(
        "not_modified_for_any_tag",
        "a client that has some version is told that it has this one",
        Replace(_answer, "given.if_none_match and names(...)", "given.if_none_match"),
    ),
    files(
        "reads_of_nothing_are_traced",
        "a read beyond a file's end is in a trace, which nobody can read then",
        always(ByteCache._count, "start < end"),
    ),
    files(
        "reads_of_the_cache_are_not_traced",
        "a trace lacks what was read from memory or disk alone",
        leave_out(ByteCache.read, "if self.trace is not None: ..."),
    ),
    files(
        "extents_of_a_file_are_one",
        "a replay takes the reads of all extents of a file for reads of one",
        Replace(touches, "Touch(name ^ any_extent, any_cost)", "Touch(name, any_cost)"),
    ),
)
