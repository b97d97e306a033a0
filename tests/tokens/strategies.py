"""Hypothesis strategies for tokens, and naive models to check them against."""

from __future__ import annotations

from hypothesis import strategies as st

from tokens import EventToken, Position, ValidWriteIdList, Vector
from tokens.logs import EventPosition, FilePosition, PostgresPosition
from tokens.mariadb import MariadbPosition

UUIDS = ("00010203-0405-0607-0809-0a0b0c0d0e0f", "3e11fa47-71ca-11e1-9e33-c80aa9429562")
SOURCES = (*UUIDS, f"{UUIDS[0]}:blue")
TOP = 12
"""Write ids and GTID numbers of the small worlds go from 1 to this."""

small = st.integers(1, 6)


@st.composite
def mysql_texts(draw: st.DrawFn) -> str:
    """MySQL sets, untidy: overlapping, reversed and repeated intervals, tags, blanks, capitals."""
    parts = []
    for source in draw(st.lists(st.sampled_from(SOURCES), max_size=4)):
        intervals = draw(st.lists(st.tuples(st.integers(1, TOP), st.integers(0, TOP)), min_size=1, max_size=4))
        shown = ":".join(f"{a}-{b}" if draw(st.booleans()) else f"0{a}" for a, b in intervals)
        text = f"{source}:{shown}{draw(st.sampled_from(['', ':']))}"
        parts.append(draw(st.sampled_from(["", " ", "\t"])) + (text.upper() if draw(st.booleans()) else text))
    return "MySQL56/" + draw(st.sampled_from([",", " ,", ",,"])).join(parts)


def mysql_numbers(text: str) -> frozenset[tuple[str, int]]:
    """The naive model of a MySQL set: its (uuid[:tag], number) pairs, one by one."""
    found = set()
    for uuid_set in text.lower().removeprefix("mysql56/").split(","):
        uuid, *parts = uuid_set.strip().split(":")
        source = uuid
        for part in filter(None, parts):
            if part[0].isdigit():
                first, _, last = part.partition("-")
                found |= {(source, number) for number in range(int(first), int(last or first) + 1)}
            else:
                source = f"{uuid}:{part}"
    return frozenset(found)


mysql_positions = mysql_texts().map(Position.parse)
mariadb_positions: st.SearchStrategy[Position] = st.dictionaries(
    st.integers(0, 2), st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=3
).map(MariadbPosition)
file_positions: st.SearchStrategy[Position] = st.builds(
    FilePosition, st.sampled_from(["bin.000009", "bin.000010", "bin.9", "relay.000010", "odd"]), st.integers(0, 3)
)
event_positions: st.SearchStrategy[Position] = st.integers(0, 9).map(EventPosition)
postgres_positions: st.SearchStrategy[Position] = st.builds(
    PostgresPosition, st.integers(0, 2), st.sampled_from([0, 9, 2**32 - 1, 2**32, 2**64 - 1])
)
positions: st.SearchStrategy[Position] = st.one_of(
    mysql_positions, mariadb_positions, postgres_positions, file_positions, event_positions
)

shards = st.sampled_from(["ks/0", "ks/-80", "ks/80-"])
shard_names = st.text(min_size=1, max_size=8)
epochs = st.integers(0, 3)


@st.composite
def event_tokens(draw: st.DrawFn, some_positions: st.SearchStrategy[Position] = mariadb_positions) -> EventToken:
    """Event tokens of a few shards, some without shard or position, some with an origin."""
    origin = st.tuples(shards, some_positions)
    return EventToken(
        draw(st.integers(-3, 3)),
        draw(st.one_of(st.just(""), shards)),
        draw(st.one_of(st.none(), some_positions)),
        draw(st.one_of(st.none(), origin)),
        draw(st.integers(0, 1)),
    )


vectors = st.dictionaries(shards, st.tuples(epochs, mariadb_positions), max_size=3).map(Vector)


@st.composite
def write_id_lists(draw: st.DrawFn, tables: tuple[str | None, ...] = ("db.t",)) -> ValidWriteIdList:
    """Lists over a small world of ids, with exceptions above the high-water mark, repeated and out of order."""
    ids = st.lists(st.integers(1, TOP), max_size=6)
    return ValidWriteIdList(
        draw(st.sampled_from(tables)),
        draw(st.integers(-1, TOP)),
        draw(ids),
        draw(ids),
        draw(st.one_of(st.none(), small)),
    )


def valid_ids(write_ids: ValidWriteIdList) -> frozenset[int]:
    """The naive model of a list: the ids in 1…hwm that are no exception."""
    return frozenset(range(1, write_ids.hwm + 1)) - frozenset(write_ids.exceptions)
