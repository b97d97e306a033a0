"""Statistics that are accurate no longer, and those that do not hold for a reader, are told apart."""

from __future__ import annotations

from serving.thrift.shown import Reader, Shown
from stream.sources.hive.rpc.thrift import text
from stream.sources.hive.structs import BOOL, MAP, STRING, MapValue, Struct, encode_struct
from tokens import ValidWriteIdList

ACCURATE = (b"COLUMN_STATS_ACCURATE", b"true")


def table(*parameters: tuple[bytes, bytes]) -> Struct:
    """One with these parameters."""
    return {1: text("t"), 2: text("db"), 9: (MAP, MapValue(STRING, STRING, [*parameters]))}


def test_a_parameter_that_was_taken_away_makes_another_version() -> None:
    """By who shows it as its own: without it no reader may see the version that has it, which may come back.

    Where statistics do not hold for the reader the metastore takes it out, and says so.
    """
    stored, listed = encode_struct(table(ACCURATE)), ValidWriteIdList.parse("db.t:5:9223372036854775807::")
    shown = Shown(1 << 20)
    for each in (None, listed):
        assert not shown.learn(stored, Reader(), each, b"without", table())
        assert shown.learn(stored, Reader(), each, b"with", table(ACCURATE))
    assert not shown.learn(stored, Reader(), listed, b"holds", table() | {20: (BOOL, True)})
    assert shown.learn(stored, Reader(), listed, b"does not hold", table() | {20: (BOOL, False)})
