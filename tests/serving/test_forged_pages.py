"""A page comes back from a client, which may have made or changed it: it is refused, or it is the end of some page."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumers.owner.protocol import GetRange, RangeRows
from consumers.owner.ranges.order import Ranking
from serving.errors import ReadError
from serving.reads.ranges.pages import Page
from serving.sources.source import RowTable, SourceRange
from stream.wire.canonical import json_of
from stream.wire.events import Column
from stream.wire.keys import KeyFormatError, row_key
from tests.serving.fakes import FakeRowSource
from tests.serving.test_ranges import TABLE, Partitions, part, read

POSSIBLE: dict[str, list[Any]] = {
    "int": [-5, 18446744073709551615],
    "year": [1999],
    "bit": [0],
    "float": [0.5, 1],
    "double": [1e300, -0.1],
    "decimal": ["-12.50"],
    "date": ["0000-00-00"],
    "datetime": ["2024-02-28 01:02:03.500"],
    "timestamp": ["2024-02-28 01:02:03"],
    "time": ["-838:59:59.5", "00:00:00"],
    "inet": ["2001:db8::1", "10.0.0.1"],
    "binary": [{"base64": "/w=="}, {"base64": ""}],
    "opaque": [{"base64": "/w=="}, "(1,2)"],
    "text": ["", "Ж\0"],
    "uuid": ["123e4567-e89b-12d3-a456-426614174000"],
}
"""Kind → values that a row may have."""
FORGED = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=9)
    | st.sampled_from([each for values in POSSIBLE.values() for each in values]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["base64", "x"]), inner, max_size=2),
    max_leaves=3,
)  # fmt: skip


class Owners(Partitions):
    """One partition, whose owner compares its rows with the end of the page."""

    def __init__(self, table: RowTable, order: Sequence[str]) -> None:
        super().__init__([part(2, hi=3, watermark=9)])
        columns = {each.name: (each.name, each.kind, each.exact) for each in table.columns}
        self._ranking = Ranking(
            [columns[name] for name in order], [(each.name, each.kind, each.exact) for each in table.key], 0
        )

    def _answer(self, request: GetRange) -> RangeRows:
        if request.after and not self._ranking.unranked:
            self._ranking.after(request.after, request.after_values)
        return super()._answer(request)


class Refusing(FakeRowSource):
    """A source to which a value is no value of its column, as to a server with strict types."""

    async def read_range(self, *_: object) -> SourceRange:
        raise ReadError("bad_key", "it cannot be")


def ordered_by(kind: str) -> RowTable:
    """The table with a column ``v`` of a kind."""
    return replace(TABLE, columns=(*TABLE.key, Column("v", kind, True)))


def true_page(table: RowTable, value: object) -> Page:
    """The page of a row by ``v``, of which others follow."""
    said = part(1, hi=3, watermark=9, more=True)
    said.images = [json_of({"id": 1, "v": value})]
    return Page.parse(read(Partitions([said]), table=table, columns={}, order_by=["v"]).page)


def refusal(table: RowTable, order: Sequence[str], page: str) -> str:
    """The code with which a page is refused; "" if it is the end of some page."""
    try:
        read(Owners(table, order), table=table, columns={}, order_by=order, page=page)
    except ReadError as refused:
        return refused.code
    return ""


@pytest.mark.parametrize("kind", POSSIBLE)
def test_a_value_that_a_row_may_have_goes_on(kind: str) -> None:
    """Of each kind, and NULL."""
    table = ordered_by(kind)
    for value in (*POSSIBLE[kind], None):
        page = str(true_page(table, value))
        assert refusal(table, ["v"], page) == ""


@given(kind=st.sampled_from([*POSSIBLE]), value=FORGED)
@example(kind="int", value="x")
@example(kind="int", value=True)
@example(kind="decimal", value=7)
@example(kind="inet", value=7)
@example(kind="time", value="x")
@example(kind="text", value={"base64": "/w=="})
@example(kind="binary", value={"base64": 7})
def test_values_of_another_type_are_refused(kind: str, value: object) -> None:
    """With the code of a page: before, an owner proved nothing of them, and without a source that was a 503."""
    table = ordered_by(kind)
    page = str(msgspec.structs.replace(true_page(table, POSSIBLE[kind][0]), values=json_of([value])))
    assert refusal(table, ["v"], page) in ("", "bad_page")


@given(kind=st.sampled_from([each for each in POSSIBLE if each != "opaque"]), value=FORGED)
@example(kind="int", value="x")
@example(kind="int", value=True)
def test_a_key_of_another_type_is_refused(kind: str, value: object) -> None:
    """As values are."""
    table = replace(TABLE, key=(Column("id", kind, True),))
    said = part(1, hi=3, watermark=9, more=True)
    said.keys = [row_key(TABLE.name, [POSSIBLE[kind][0]])]
    page = Page.parse(read(Partitions([said]), table=table, columns={}).page)
    with suppress(KeyFormatError):
        forged = str(msgspec.structs.replace(page, last=row_key(TABLE.name, [value])))
        assert refusal(table, [], forged) in ("", "bad_page")


def test_a_page_of_boxes_in_boxes_is_refused() -> None:
    """Deeper than anybody reads."""
    fields = msgspec.msgpack.encode(true_page(ordered_by("int"), 7))
    more = bytes((fields[0] + 1,)) + fields[1:] + b"\x91" * 100_000 + b"\xc0"
    with pytest.raises(ReadError) as refused:
        Page.parse(urlsafe_b64encode(more).decode())
    assert refused.value.code == "bad_page"


@given(st.data())
def test_damaged_bytes_are_refused(data: st.DataObject) -> None:
    """Of a page, and of its parts."""
    page = true_page(ordered_by("int"), 7)
    field = data.draw(st.sampled_from(["", "last", "since", "until", "values", "shard"]))
    whole = urlsafe_b64decode(str(page) + "==") if not field else getattr(page, field)
    damaged = bytearray(whole.encode() if isinstance(whole, str) else whole)
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    made = damaged.decode(errors="replace") if isinstance(whole, str) else bytes(damaged)
    text = (
        str(msgspec.structs.replace(page, **{field: made}))
        if field
        else urlsafe_b64encode(damaged).rstrip(b"=").decode()
    )
    table = ordered_by("int")
    assert refusal(table, ["v"], text) in ("", "bad_page")


def test_values_in_too_many_lists_are_refused() -> None:
    """They are decoded before anything is known of them."""
    table = ordered_by("int")
    page = str(msgspec.structs.replace(true_page(table, 7), values=b"[" * 9_000 + b"]" * 9_000))
    assert refusal(table, ["v"], page) == "bad_page"


def test_what_only_the_source_knows_to_be_no_value_is_refused() -> None:
    """A range that has a page has a row, so it is the page that the source cannot read."""
    table = ordered_by("uuid")
    page = str(true_page(table, "zzz"))
    unproved = Partitions([part(hi=3, watermark=20, served=False, why="not complete")])
    with pytest.raises(ReadError) as refused:
        read(unproved, Refusing(None, "0-1-9"), table=table, columns={}, order_by=["v"], page=page, wait_ms=5)
    assert refused.value.code == "bad_page"
