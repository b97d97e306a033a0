"""What a metastore showed is kept for the very table and kind of reader that it was shown for, and for no other."""

from __future__ import annotations

import pytest

from serving.thrift.shown import COLUMNS_ACCURATE, Reader, Shown, is_shown_as
from stream.sources.hive.rpc.thrift import integer, long, record, text, texts
from stream.sources.hive.structs import BOOL, MAP, STRING, Struct, ThriftError, encode_struct
from tests.serving.thrift.structs import parameters, table_struct
from tokens import ValidWriteIdList

WRITER = Reader((1,), ("A",))
ACCURATE = {COLUMNS_ACCURATE.decode(): "true"}
VALID, INVALID = (ValidWriteIdList("db.t", high) for high in (5, 4))
STORED = table_struct("1", "Ds", write_id=5, **ACCURATE)
RAW = encode_struct(STORED)


def as_shown(stored: Struct) -> Struct:
    """As a metastore changes a table for a reader."""
    return stored | {20: (BOOL, True), 22: integer(8), 23: texts(["B"]), 24: texts(["C"])}


def test_a_table_is_shown_as_it_is_but_for_what_depends_on_the_reader() -> None:
    """``accessType``, capabilities, and whether statistics hold; these are taken out where they do not."""
    assert is_shown_as(STORED, STORED)
    assert is_shown_as(STORED, as_shown(STORED))
    assert is_shown_as(as_shown(STORED), STORED)
    assert is_shown_as(STORED, as_shown(STORED) | {9: parameters(v="1"), 20: (BOOL, False)})
    assert not is_shown_as(STORED, as_shown(STORED) | {9: parameters(v="1"), 20: (BOOL, True)})
    assert is_shown_as({1: text("t"), 9: parameters()}, {1: text("t")})


@pytest.mark.parametrize(
    "other",
    [
        {1: text("u")},
        {3: text("owner")},
        {8: texts([])},
        {19: long(6)},
        {9: parameters(v="2", **ACCURATE)},
        {9: parameters(v="1", w="1", **ACCURATE)},
        {9: parameters(**ACCURATE)},
        {9: parameters(v="1", **{COLUMNS_ACCURATE.decode(): "false"})},
    ],
    ids=str,
)
def test_any_other_difference_is_another_version(other: Struct) -> None:
    """Changed, added or gone: also of one parameter alone."""
    assert not is_shown_as(STORED, STORED | other)
    assert not is_shown_as(STORED | other, STORED)


def test_statistics_that_nobody_stored_are_of_another_version() -> None:
    """They are taken out for some readers, and put in for none."""
    assert not is_shown_as(table_struct("1", "Ds", write_id=5), STORED)


def test_what_was_shown_is_found_for_that_kind_of_reader_alone() -> None:
    """Another client, other capabilities, another version of the table: each is asked for once."""
    shown = Shown(1 << 20)
    facts = shown.facts_of(RAW)
    assert shown.get(facts, WRITER, None) is None
    assert shown.learn(RAW, WRITER, None, b"result", as_shown(STORED))
    assert shown.get(facts, WRITER, None) == b"result"
    for other in (Reader((1, 2), ("A",)), Reader((1,), ("A", "B")), Reader()):
        assert shown.get(facts, other, None) is None
    changed = encode_struct(table_struct("2", "Ds", write_id=5, **ACCURATE))
    assert shown.get(shown.facts_of(changed), WRITER, None) is None


def test_what_was_shown_by_a_list_holds_for_lists_that_see_the_same() -> None:
    """Whether the write of the statistics is valid decides, not the list itself; no list is a third kind."""
    shown = Shown(1 << 20)
    facts = shown.facts_of(RAW)
    seen = {VALID: b"valid", INVALID: b"not", None: b"none"}
    for listed, result in seen.items():
        assert shown.learn(RAW, WRITER, listed, result, STORED)
    assert [shown.get(facts, WRITER, listed) for listed in seen] == [*seen.values()]
    assert shown.get(facts, WRITER, ValidWriteIdList("db.t", 9, [7])) == b"valid"
    assert shown.get(facts, WRITER, ValidWriteIdList("db.t", 9, [5])) == b"not"


def test_statistics_without_a_write_hold_for_every_list() -> None:
    """As `isStatsCompliant` says of a table that was never written."""
    shown, raw = Shown(1 << 20), encode_struct(table_struct())
    assert shown.learn(raw, WRITER, INVALID, b"result", table_struct())
    assert shown.get(shown.facts_of(raw), WRITER, ValidWriteIdList("db.t", 0)) == b"result"


def test_another_version_is_not_learnt() -> None:
    """The metastore was asked later than the cache."""
    shown = Shown(1 << 20)
    assert not shown.learn(RAW, WRITER, None, b"result", table_struct("2", "Ds", write_id=5, **ACCURATE))
    assert shown.get(shown.facts_of(RAW), WRITER, None) is None


def test_bytes_are_bounded() -> None:
    """What was used longest ago goes first; what is learnt again counts once; one that is too large is not kept."""
    shown = Shown(20)
    facts = shown.facts_of(RAW)
    readers = [Reader((number,)) for number in range(3)]

    def learn(reader: Reader, result: bytes) -> list[bytes | None]:
        assert shown.learn(RAW, reader, None, result, STORED)
        return [shown.get(facts, each, None) for each in readers]

    assert learn(readers[0], b"0" * 10) == [b"0" * 10, None, None]
    for _ in range(3):
        assert learn(readers[1], b"1" * 10) == [b"0" * 10, b"1" * 10, None]
    assert shown.get(facts, readers[0], None)
    assert learn(readers[2], b"2" * 10) == [b"0" * 10, None, b"2" * 10]
    assert learn(readers[1], b"1" * 21) == [None, None, None]
    assert learn(readers[1], b"1" * 20) == [None, b"1" * 20, None]


def test_partitions_without_buckets_are_told() -> None:
    """The others are shown otherwise to readers that lack a capability."""
    shown = Shown(0)
    for buckets, is_unbucketed in ((-1, True), (0, True), (4, False)):
        partition = encode_struct({1: texts(["1"]), 6: record({6: integer(buckets)})})
        for _ in range(2):
            assert shown.is_unbucketed(partition) is is_unbucketed
    assert shown.is_unbucketed(encode_struct({1: texts(["1"])}))


def test_facts_are_read_once_and_odd_tables_refused() -> None:
    """Columns in lower case; a write id of another type is none."""
    shown = Shown(0)
    facts = shown.facts_of(RAW)
    assert (facts.write_id, facts.partition_keys) == (5, ("ds",))
    assert shown.facts_of(bytes(bytearray(RAW))) is facts
    assert shown.facts_of(encode_struct({19: (STRING, b"5")})).write_id == -1
    for odd in ({9: integer(1)}, {9: (MAP, 1)}):
        with pytest.raises(ThriftError, match="no map"):
            is_shown_as(odd, odd)
