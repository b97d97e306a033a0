"""A table of several shards: each row is read as its shard's, and a shard that others have succeeded is over."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jobs.source.cut import AsOf, AsOfError, Survey, parse_as_of
from spark_jobs.source.table import Base, TablePartition
from stream.wire.events import ABSENT, VALUE
from stream.wire.keys import Layout
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import Folded, frame, gtid, key, marker, start
from tests.consumers.owning import schema
from tests.spark_jobs.source.shop import BEGUN, COLUMNS, LAYOUT
from tokens import Position, Vector

LEFT, RIGHT, OLD = "shop/-80", "shop/80-", "shop/-"
RANGES = {LEFT: "-80", RIGHT: "80-"}
SPLIT = BEGUN + 1_000
"""When the two took the place of the old one, in seconds."""


def beginning(shard: str, epoch: int, at: int, **declared: Any) -> list[bytes]:
    """How a shard begins."""
    described = schema(2, columns=COLUMNS, shard=shard, epoch=epoch, gtid=gtid(at), timestamp=BEGUN)
    shards = [shard] if shard == OLD else [LEFT, RIGHT]
    told = topology(*shards, shard=shard, epoch=epoch, ordinal=0, **declared)
    return [told, start(shard=shard, epoch=epoch, sequence=at), described]


def row(shard: str, epoch: int, number: int, at: int, *, seconds: int, kind: int = VALUE) -> bytes:
    """A transaction with one row, third of its shard."""
    image = b'{"id":%d,"name":"at %d"}' % (number, at) if kind == VALUE else b""
    columns = {"gtids": [gtid(at)], "timestamps": [seconds], "transactions": [1]}
    return frame([(key(number), kind, image, 3)], shard=shard, epoch=epoch, **columns)


def said(shard: str, epoch: int, at: int, seconds: int) -> bytes:
    """A marker behind that row, by the source's clock."""
    clock = {"timestamp": BEGUN, "as_of_ms": 1_000 * seconds}
    return marker(3, sequence=at, shard=shard, epoch=epoch, layout=LAYOUT, **clock)


def owner_of(number: int) -> str:
    """The shard of a row."""
    return LEFT if Layout.parse(LAYOUT).keyspace_id(key(number), 0) < 1 << 63 else RIGHT


NUMBERS = {shard: next(number for number in range(100) if owner_of(number) == shard) for shard in RANGES}
BEFORE = [*beginning(OLD, 1, 1), row(OLD, 1, NUMBERS[LEFT], 2, seconds=BEGUN), said(OLD, 1, 2, SPLIT - 1)]
AFTER = [
    message
    for shard in RANGES
    for message in (
        *beginning(shard, SPLIT, 2, ancestors={OLD: 1}, ranges=RANGES),
        row(shard, SPLIT, NUMBERS[shard], 3, seconds=SPLIT + 10),
        said(shard, SPLIT, 3, SPLIT + 100),
    )
]


def rows(messages: list[bytes], as_of: AsOf, base: Folded | None = None) -> dict[str, tuple[str, Any]]:
    """Key → kind and name of all rows of a partition at a moment."""
    held = Base(base.state.head, base.entries) if base is not None else None
    survey = Survey("shop.items", as_of)
    for described in held.descriptions("shop.items") if held is not None else ():
        survey.describe(described)
    survey.read(0, messages, *((held.reached(), held.texts(), held.over()) if held is not None else ()))
    partition = TablePartition("shop.items", 0, survey.cut, held, survey.description().prefix, is_now=as_of.is_now)
    first = held.head.offset if held is not None else 0
    partition.fold(enumerate(messages, first))
    found = [each for each in partition.rows() if each["_kind"] != "incomplete"]
    return {each["_key"]: (each["_kind"], each.get("image", {}).get("name")) for each in found}


def named(number: int) -> str:
    """The key of a row, as it is written."""
    return key(number).decode().partition("\0")[2]


def test_each_row_of_a_shard_with_a_range_is_read() -> None:
    """A deleted one is not there. Without the table's prefix, nobody would know whose key it is."""
    messages = [
        message
        for shard, kind in ((LEFT, VALUE), (RIGHT, ABSENT))
        for message in (
            *beginning(shard, 1, 1, ranges=RANGES),
            row(shard, 1, NUMBERS[shard], 2, seconds=BEGUN, kind=kind),
            said(shard, 1, 2, BEGUN + 5),
        )
    ]
    assert rows(messages, parse_as_of("")) == {named(NUMBERS[LEFT]): ("value", "at 2")}


@pytest.mark.parametrize("is_in_base", [False, True])
def test_a_shard_that_is_over_is_not_waited_for(is_in_base: bool) -> None:
    """Its source has ended for good, so it never says that it is past a moment that came later."""
    expected = {named(number): ("value", "at 3") for number in NUMBERS.values()}
    later = said(LEFT, SPLIT, 3, SPLIT + 200), said(RIGHT, SPLIT, 3, SPLIT + 200)
    token = Vector({shard: (SPLIT, Position.parse(gtid(3))) for shard in RANGES})
    base = Folded(*BEFORE, *AFTER) if is_in_base else None
    repeated = [said(OLD, 1, 2, SPLIT - 1)]  # nothing fences its source
    messages = [*repeated, *later] if is_in_base else [*BEFORE, *AFTER, *repeated, *later]
    for moment in (AsOf(seconds=SPLIT + 150), AsOf(token)):
        assert rows(messages, moment, base) == expected


@pytest.mark.parametrize("seconds", [SPLIT - 500, SPLIT - 2])
def test_before_its_end_a_shard_is_what_it_was(seconds: int) -> None:
    """Those that succeeded it later take nothing of it back."""
    assert rows([*BEFORE, *AFTER], AsOf(seconds=seconds)) == {named(NUMBERS[LEFT]): ("value", "at 2")}


@pytest.mark.parametrize("messages", [BEFORE, [*BEFORE, *AFTER[:5]]])
def test_a_shard_that_goes_on_is_waited_for(messages: list[bytes]) -> None:
    """It may have transactions of before the moment that are not published yet."""
    with pytest.raises(AsOfError) as refused:
        rows(messages, AsOf(seconds=SPLIT + 150))
    assert refused.value.code == "as_of_ahead"


QUIET, BUSY = "shop/0", "shop/1"
BOTH = topology(QUIET, BUSY, shard=QUIET, ordinal=3)
"""What the quiet shard declares again, behind all that it has."""


def written(shard: str, number: int, ordinal: int) -> bytes:
    """A row that has its number as a name."""
    return frame([(key(number), VALUE, b'{"id":%d,"name":"%d"}' % (number, number), ordinal)], shard=shard)


OF_QUIET = [start(), schema(2, columns=COLUMNS), written(QUIET, 1, 3), marker(3, layout=LAYOUT)]
OF_BUSY = [
    topology(QUIET, BUSY, shard=BUSY, ordinal=0),
    start(shard=BUSY),
    written(BUSY, 2, 2),
    marker(2, shard=BUSY, layout=LAYOUT),
]


def test_a_shard_that_a_quiet_one_declared_is_no_stranger_now() -> None:
    """The source was started again for a second shard, and has published nothing since: its rows would be void."""
    known = {named(number): ("value", str(number)) for number in (1, 2)}
    assert rows([*OF_QUIET, BOTH, marker(3, layout=LAYOUT), *OF_BUSY], AsOf()) == known


@pytest.mark.parametrize("said_again", [BOTH, written(QUIET, 3, 4)], ids=["quiet", "amid"])
def test_what_can_not_be_read_now_makes_rows_void_whatever_another_shard_said(said_again: bytes) -> None:
    """An owner voids by it. The change that it was would be lost without a word, and the row be read as it was before.

    The other shard declares itself again while it is quiet, or is amid a transaction.
    """
    begun = [topology(QUIET, BUSY, shard=QUIET, ordinal=0), *OF_QUIET, *OF_BUSY]
    unread = [said_again, b"\x00junk", marker(2, shard=BUSY, layout=LAYOUT)]
    assert rows([*begun, *unread], AsOf()) == {named(number): ("void", None) for number in (1, 2)}
