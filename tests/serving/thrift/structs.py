"""Thrift structs for tests: of every type, and a table's."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from stream.sources.hive.rpc.thrift import field, long, text
from stream.sources.hive.structs import (
    BOOL,
    BYTE,
    DOUBLE,
    I16,
    I32,
    I64,
    LIST,
    MAP,
    SET,
    STRING,
    STRUCT,
    UUID,
    ListValue,
    MapValue,
    Struct,
    decode_struct,
)

_SCALARS: Final[dict[int, st.SearchStrategy[Any]]] = {
    BOOL: st.booleans(),
    BYTE: st.integers(-128, 127),
    DOUBLE: st.floats(),
    I16: st.integers(-(2**15), 2**15 - 1),
    I32: st.integers(-(2**31), 2**31 - 1),
    I64: st.integers(-(2**63), 2**63 - 1),
    STRING: st.binary(max_size=20),
    UUID: st.binary(min_size=16, max_size=16),
}


def values(kind: int, depth: int) -> st.SearchStrategy[Any]:
    """Values of a type, nested up to ``depth``."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    kinds = st.sampled_from([*_SCALARS, *((STRUCT, LIST, MAP, SET) if depth else ())])
    typed = kinds.flatmap(lambda each: st.tuples(st.just(each), values(each, depth - 1)))
    if kind == STRUCT:
        return st.dictionaries(st.integers(1, 12), typed, max_size=4)
    if kind == MAP:
        return st.tuples(kinds, kinds).flatmap(
            lambda of: st.lists(st.tuples(values(of[0], depth - 1), values(of[1], depth - 1)), max_size=3).map(
                lambda pairs: MapValue(*of, pairs)
            )
        )
    return kinds.flatmap(lambda of: st.lists(values(of, depth - 1), max_size=3).map(lambda each: ListValue(of, each)))


def parameters(**found: str) -> tuple[int, MapValue]:
    """A ``map<string,string>`` field."""
    return MAP, MapValue(STRING, STRING, [(name.encode(), each.encode()) for name, each in found.items()])


def table_struct(version: str = "1", *keys: str, write_id: int = 0, **more: str) -> Struct:
    """A table ``db.t`` as a metastore stores it. ``keys``: its partition columns. ``more``: its parameters."""
    columns = LIST, ListValue(STRUCT, [{1: text(key), 2: text("string")} for key in keys])
    found: Struct = {1: text("t"), 2: text("db"), 8: columns, 9: parameters(v=version, **more)}
    return found | ({19: long(write_id)} if write_id else {})


def returned(reply: bytes, head: int) -> Any:
    """What a reply returns, whose head has so many bytes."""
    return field(decode_struct(reply[head:]), 0)
