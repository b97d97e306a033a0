"""The records of a change log in a topic: what a reader gets of each event, and how large ones are cut."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st

from serving.changelog.errors import ChangeLogError
from serving.changelog.records import MARGIN_BYTES, RECORDS, VOID_REASON, Encoder, own_framing, schema_text
from serving.client import StreamChange, StreamColumn, StreamEvent
from stream.wire.announced import fingerprint_of
from stream.wire.canonical import float_json
from stream.wire.codec import HEADER_SIZE, MAGIC

RECORD_OF_THE_FIRST_SCHEMA = (
    "0873686f700c73686f702f30021a4d6172696144422f302d312d3580c49fd50c02740002020c736368656d611473686f702e"
    "6974656d730000000000000204696406696e740002046964000100"
)
"""A description, without framing, as it was written before columns had SQL types."""
KINDS = {"id": "int", "price": "double", "big": "int", "raw": "binary", "name": "text", "doc": "json"}


def encoder(bytes_max: int = 1_000_000, asked: list[str] | None = None) -> Encoder:
    """Of a keyspace whose tables have the columns `KINDS`."""

    def describe(table: str) -> dict[str, str]:
        if asked is not None:
            asked.append(table)
        return KINDS

    return Encoder("shop", own_framing(), describe, bytes_max)


def read(record: bytes) -> tuple[str, dict[str, Any]]:
    """Name and fields of a record, as any reader of Avro gets them with the schema's file."""
    framing = {header: name for name, header in own_framing().items()}
    name = framing[record[:HEADER_SIZE]]
    body = BytesIO(record[HEADER_SIZE:])
    fields = schemaless_reader(body, json.loads(schema_text(name)), None)
    assert not body.read(), "nothing follows"
    assert isinstance(fields, dict)
    return name, fields


def row(number: int, **columns: Any) -> StreamChange:
    return StreamChange("row", "shop.items", [number], "value", {"id": number, **columns})


def event(*changes: StreamChange) -> StreamEvent:
    return StreamEvent(
        "transaction", "c", "t", "shop/0", 1, gtid="MariaDB/0-1-5", timestamp=1_700_000_000, changes=list(changes)
    )


def test_values_have_the_types_of_avro() -> None:
    """The double 1.0, whose canonical form is 1, is a double; what no type holds is exact text."""
    asked: list[str] = []
    image = {"price": 1, "big": 2**63, "raw": {"base64": "AAE="}, "name": None, "doc": {"a": [1]}, "new": 3}
    made = encoder(asked=asked)
    [record] = made.records(event(row(7, **image)))
    name, fields = read(record)
    assert name == "Transaction"
    assert (fields["keyspace"], fields["shard"], fields["epoch"], fields["gtid"]) == (
        "shop",
        "shop/0",
        1,
        "MariaDB/0-1-5",
    )
    [change] = fields["changes"]
    wanted = {"id": 7, "price": 1.0, "big": str(2**63), "raw": b"\0\1", "name": None, "doc": '{"a":[1]}', "new": 3}
    assert change["row"] == wanted
    assert [type(each) for each in change["row"].values()] == [type(each) for each in wanted.values()]
    assert change["key"] == [7]
    made.records(event(row(8)))
    assert asked == ["shop.items"], "a table is asked for once"


@pytest.mark.parametrize("value", [2**60 + 1, -(2**53) - 1, 2**63 - 1, 2**64 - 1])
def test_an_integer_of_before_a_ddl_to_double_is_exact(value: int) -> None:
    """No double is it, so it stays an integer, or its digits."""
    [record] = encoder().records(event(row(7, price=value)))
    told = read(record)[1]["changes"][0]["row"]["price"]
    assert (type(told), told) == ((int, value) if value < 2**63 else (str, str(value)))


@pytest.mark.parametrize("value", [5e-324, 1e15, 2.0**53, 1.5e19, 1.2345678901234567e20, -1.2345678901234567e20, 1e300])
def test_a_large_double_is_a_double(value: float) -> None:
    """Also where its canonical form is an integer with zeros at its end."""
    [record] = encoder().records(event(row(7, price=json.loads(float_json(value)))))
    told = read(record)[1]["changes"][0]["row"]["price"]
    assert (type(told), told) == (float, value)


def test_an_event_of_a_kind_that_only_a_newer_front_knows_is_refused() -> None:
    """A record that says something else would be worse than none: the log goes on with a newer version."""
    with pytest.raises(ChangeLogError, match="savepoint") as refused:
        encoder().records(StreamEvent("savepoint", "c"))
    assert refused.value.code == "log_refused"
    assert "version" in refused.value.hint


def test_a_description_in_the_log_stands_for_what_follows() -> None:
    """After a DDL the columns are as the log tells, whatever the front knew before."""
    told = StreamChange(
        "schema",
        "shop.items",
        columns=[StreamColumn("id", "int", "int(11)"), StreamColumn("v", "double")],
        primary_key=["id"],
    )
    asked: list[str] = []
    [record] = encoder(asked=asked).records(event(told, row(1, v=2, price=3)))
    described, changed = read(record)[1]["changes"]
    assert described["columns"] == [
        {"name": "id", "kind": "int", "sql_type": "int(11)"},
        {"name": "v", "kind": "double", "sql_type": ""},
    ]
    assert described["primary_key"] == ["id"]
    assert repr(changed["row"]) == repr({"id": 1, "v": 2.0, "price": 3})
    assert not asked


def test_the_last_description_in_the_log_counts() -> None:
    """A second DDL may make an integer of what was a double: by the first one its values would come as doubles."""
    made = encoder()
    for kind, wanted in (("double", 2.0), ("int", 2)):
        told = StreamChange("schema", "shop.items", columns=[StreamColumn("v", kind)], primary_key=["id"])
        [record] = made.records(event(told, row(1, v=2)))
        found = read(record)[1]["changes"][1]["row"]["v"]
        assert (type(found), found) == (type(wanted), wanted)


def test_readers_and_records_of_before_the_sql_types_go_on() -> None:
    """A record of the first schema is read by that of now, and one of now by a reader that has the first one only."""
    first = json.loads((Path("schemas") / "log" / "Transaction.v1.avsc").read_text(encoding="utf-8"))
    now = json.loads(schema_text("Transaction"))
    described = [{"name": "id", "kind": "int"}]
    before = schemaless_reader(BytesIO(bytes.fromhex(RECORD_OF_THE_FIRST_SCHEMA)), first, now)
    assert isinstance(before, dict)
    assert before["changes"][0]["columns"] == [{**described[0], "sql_type": ""}]
    told = StreamChange("schema", "shop.items", columns=[StreamColumn("id", "int", "int(11)")], primary_key=["id"])
    [record] = encoder().records(event(told))
    later = schemaless_reader(BytesIO(record[HEADER_SIZE:]), now, first)
    assert isinstance(later, dict)
    of_before = {name: value for name, value in before["changes"][0].items() if name not in ("was", "before")}
    assert later["changes"] == [{**of_before, "columns": described}]


def test_readers_and_records_of_before_the_images_of_before_go_on() -> None:
    """Of the second schema, too: who has it reads the rows of now, and its rows are read as ones of unknown before."""
    second = json.loads((Path("schemas") / "log" / "Transaction.v2.avsc").read_text(encoding="utf-8"))
    now = json.loads(schema_text("Transaction"))
    told = StreamChange("row", "shop.items", [1], "value", {"id": 1}, was="value", before={"id": 1, "v": 0.5})
    [record] = encoder().records(event(told))
    whole = schemaless_reader(BytesIO(record[HEADER_SIZE:]), now, None)
    seen = schemaless_reader(BytesIO(record[HEADER_SIZE:]), now, second)
    assert isinstance(whole, dict)
    assert isinstance(seen, dict)
    assert (whole["changes"][0]["was"], whole["changes"][0]["before"]) == ("value", {"id": 1, "v": 0.5})
    out = BytesIO()
    schemaless_writer(out, second, seen)
    again = schemaless_reader(BytesIO(out.getvalue()), second, now)
    assert isinstance(again, dict)
    assert again["changes"] == [{**whole["changes"][0], "was": "", "before": None}]


def test_a_record_without_room_for_what_a_row_was_has_the_row() -> None:
    """The image of before goes first."""
    told = StreamChange("row", "shop.items", [1], "value", {"v": "x" * 600}, was="value", before={"v": "y" * 600})
    [record] = Encoder("shop", own_framing(), lambda _: {}, MARGIN_BYTES + 1_000).records(event(told))
    [change] = read(record)[1]["changes"]
    assert (change["op"], len(change["row"]["v"]), change["was"], change["before"]) == ("value", 600, "", None)


def test_what_is_no_row_is_a_record_too() -> None:
    """Voids, watermarks and messages that nobody can read are told, each as what it is."""
    made = encoder()
    void = StreamChange("void", "shop.items", reason="ddl")
    [record] = made.records(
        event(void, StreamChange("row", "shop.items", [1], "void"), StreamChange("row", "*", [2], "deleted"))
    )
    changes = read(record)[1]["changes"]
    assert [(each["kind"], each["op"], each["row"], each["reason"]) for each in changes] == [
        ("void", "", None, "ddl"),
        ("row", "void", None, ""),
        ("row", "deleted", None, ""),
    ]
    [mark] = made.records(StreamEvent("watermark", "c", "v1.x", timestamp=5, as_of_ms=6))
    assert read(mark) == ("Watermark", {"keyspace": "shop", "token": "v1.x", "timestamp": 5, "as_of_ms": 6})
    [lost] = made.records(StreamEvent("unreadable", "c", partition=3, offset=9, reason="not_freshet"))
    assert read(lost) == ("Unreadable", {"keyspace": "shop", "partition": 3, "offset": 9, "reason": "not_freshet"})
    [empty] = made.records(event())
    assert read(empty)[1]["changes"] == []


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=30))
def test_a_large_transaction_comes_in_parts_that_fit(sizes: list[int]) -> None:
    """The parts have the changes in order, each once, and each says which of how many it is."""
    bytes_max = MARGIN_BYTES + 2_500
    records = encoder(bytes_max).records(event(*(row(n, name="x" * size) for n, size in enumerate(sizes))))
    parts = [read(record)[1] for record in records]
    assert all(len(record) <= bytes_max for record in records)
    assert [(part["part"], part["parts"]) for part in parts] == [(n, len(parts)) for n in range(len(parts))]
    changes = [change for part in parts for change in part["changes"]]
    assert [change["key"] for change in changes] == [[n] for n in range(len(sizes))]
    for size, change in zip(sizes, changes, strict=True):
        if size < 2_000:
            assert change["row"]["name"] == "x" * size
        elif size > 2_500:
            assert (change["op"], change["row"], change["reason"]) == ("void", None, VOID_REASON)


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_names_its_schema(name: str) -> None:
    """Without a registry it begins as Avro's single-object encoding: a reader finds the file by the fingerprint."""
    from fastavro.schema import to_parsing_canonical_form

    canonical = to_parsing_canonical_form(json.loads(schema_text(name)))
    assert own_framing()[name] == MAGIC + fingerprint_of(canonical)


def test_a_row_without_a_key_has_the_types_of_its_columns() -> None:
    """Both of its images, as those of any other row: the double 1.0 is no integer."""
    told = StreamChange("keyless", "shop.items", [], "updated", {"price": 1, "big": 1}, before={"price": 2})
    [record] = encoder().records(event(told))
    [change] = read(record)[1]["changes"]
    values = [change["row"]["price"], change["row"]["big"], change["before"]["price"]]
    assert (values, list(map(type, values))) == ([1.0, 1, 2.0], [float, int, float])
