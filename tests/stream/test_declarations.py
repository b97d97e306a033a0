"""What is said once is said again, as it is by then, and can be recovered from there."""

from __future__ import annotations

import pytest

from stream.publish.topology import DeclaredTopology
from stream.wire.batch import Batch, BatchLimits, Framer
from stream.wire.codec import (
    READER_VERSION,
    RECORDS,
    ROW_FRAME_HEADER,
    CodecError,
    NewerWireError,
    Record,
    current_schema,
    decode,
)
from stream.wire.declarations import Declarations
from stream.wire.events import (
    VALUE,
    BackfillTable,
    BeginScope,
    BindName,
    Change,
    Column,
    DescribeTable,
    RowChange,
    SourceTransaction,
    Topology,
    VoidTable,
)
from stream.wire.keys import Layout, row_key
from tests.upgrades.next_version import HINT, SCHEMAS, TRANSFER, announcement, topic, written

SHARD = "shop/0"
HOME = Layout(1).home_partition(SHARD)
SAID = frozenset({"SchemaText", "Topology", "Scope", "TableSchema", "NameBinding"})


def _framer(**options: int) -> Framer:
    framer = Framer(SHARD, Layout(1), None, BatchLimits(**options), nonce=1)
    framer.announce(Topology((SHARD,)))
    framer.start_epoch("MariaDB/0-1-0", 1, "first_start")
    return framer


def _publish(framer: Framer, number: int, *changes: Change) -> Batch:
    position = f"MariaDB/0-1-{number}"
    framer.add(SourceTransaction(position, position, number, list(changes)), 0, len(changes))
    return framer.take()


def _table(name: str, *columns: str) -> DescribeTable:
    return DescribeTable(name, tuple(Column(each, "int", True) for each in columns), columns[:1])


def _messages(*batches: Batch) -> list[bytes]:
    return [value for batch in batches for partition, value in batch.records if partition == HOME]


def _said(*batches: Batch) -> list[bytes]:
    return [value for value in _messages(*batches) if decode(value)[0] in SAID]


def _recovered(values: list[bytes], epoch: int = 1) -> Declarations:
    found = Declarations(SHARD, epoch)
    for value in values:
        found.read(value)
    return found


def _everything(declared: Declarations) -> set[bytes]:
    return {value for key in declared.keys() if (value := declared.value(key))}  # noqa: SIM118


def test_the_repeat_is_the_same_bytes_of_what_still_holds() -> None:
    """Described again, bound again and unbound: the block has the last of each, with its own ordinal, and no more."""
    framer = _framer()
    begun = framer.take()
    first = _publish(framer, 1, BeginScope(("shop.*",)), _table("shop.a", "id"), _table("shop.b", "id"))
    second = _publish(framer, 2, _table("shop.a", "id", "v"), BindName("db.t", 7), BindName("db.u", 8))
    third = _publish(framer, 3, DescribeTable("shop.b", (), (), False, "no such table"), BindName("db.u", 0))
    last = _publish(framer, 4, BindName("db.w", 7, "db.t"))
    framer.begin_repeat(17)
    repeat = framer.take()
    again = _said(repeat)
    assert set(again) <= set(_said(begun, first, second, third, last))
    assert len(again) == len(set(again))
    what = [(name, fields.get("table", fields.get("name"))) for name, fields in map(decode, again)]
    assert what[-4:] == [("Topology", None), ("Scope", None), ("TableSchema", "shop.a"), ("NameBinding", "db.w")]
    assert {name for kind, name in what if kind == "SchemaText"} == set(RECORDS)
    assert (repeat.resume.declared_at, repeat.resume.ordinal) == (17, last.resume.ordinal)
    assert _everything(_recovered(_messages(begun, first, second, third, last))) == set(again)
    assert _everything(_recovered(_messages(repeat))) == set(again)


def test_a_change_in_the_middle_of_the_repeat_is_not_taken_back() -> None:
    """A repeat that takes many batches: what is dropped or changed meanwhile is recovered as it is by then."""
    framer = _framer(repeat_bytes=1)
    framer.take()
    names = [BindName(f"db.t{number}", number) for number in range(1, 9)]
    _publish(framer, 1, BeginScope(("shop.*",)), _table("shop.a", "id"), *names)
    framer.begin_repeat(5)
    batches = [framer.take() for _ in range(3)]
    changed: list[Change] = [BindName("db.t8", 0), BindName("db.t1", 99), _table("shop.b", "id")]
    batches.append(_publish(framer, 2, *changed))
    assert batches[-1].resume.declared_at == -1
    while framer.is_repeating:
        batches.append(framer.take())
        assert len(_said(batches[-1])) <= 1, "a batch has no more than its share"
    assert batches[-1].resume.declared_at == 5
    found = _recovered(_messages(*batches))
    bound = {
        fields["name"]: fields["table_id"] for name, fields in map(decode, _everything(found)) if name == "NameBinding"
    }
    assert bound == {"db.t1": 99, **{f"db.t{number}": number for number in range(2, 8)}}
    assert found.descriptions() == {"shop.a": _table("shop.a", "id"), "shop.b": _table("shop.b", "id")}


def test_a_repeated_scope_does_not_forget_what_was_described_since() -> None:
    """The scope of old comes again after a newer description: it keeps its place in the order."""
    framer = _framer()
    framer.take()
    _publish(framer, 1, BeginScope(("shop.*",)), _table("shop.old", "id"))
    framer.begin_repeat(5)
    batch = _publish(framer, 2, _table("shop.new", "id"))
    assert set(_recovered(_messages(batch)).descriptions()) == {"shop.old", "shop.new"}


def test_every_schema_stands_before_its_first_use() -> None:
    """The texts of all records come before anything else of the epoch, so that any Avro reader gets along."""
    framer = _framer()
    messages = _messages(framer.take(), _publish(framer, 1, RowChange(row_key("shop.a", [1]), 1, b"{}")))
    texts = set()
    for value in messages:
        name, fields = decode(value)
        if name == "SchemaText":
            texts.add(fields["fingerprint"])
            assert b"\xc3\x01" + fields["fingerprint"] == current_schema(fields["name"]).header
        else:
            assert value[2:10] in texts, name


def test_a_new_epoch_says_everything_itself() -> None:
    """Nothing of the old epoch is said again; schemas and topology come with the start, ancestors do not."""
    framer = Framer(SHARD, Layout(1))
    framer.announce(Topology((SHARD,), (("shop/old", 3),)))
    framer.start_epoch("MariaDB/0-1-0", 1, "first_start")
    framer.take()
    _publish(framer, 1, _table("shop.a", "id"))
    framer.begin_repeat(5)
    framer.start_epoch("MariaDB/0-1-9", 9, "history_lost")
    batch = framer.take()
    records = [decode(value) for value in _messages(batch)]
    assert {fields["epoch"] for _, fields in records} == {2}
    assert [name for name, _ in records].count("SchemaText") == len(RECORDS)
    [topology] = [fields for name, fields in records if name == "Topology"]
    assert (topology["ancestors"], batch.resume.declared_at) == ([], -1)
    assert topology["succeeded"] == [{"shard": "shop/old", "epoch": 3}]
    resumed = DeclaredTopology().resumed(SHARD, topology)
    assert resumed.fields()["succeeded"] == topology["succeeded"]
    found = _recovered(_messages(batch), 2)
    assert (found.has_beginning, found.descriptions()) == (True, {})


def _markers(*batches: Batch) -> list[Record]:
    return [fields for name, fields in map(decode, _messages(*batches)) if name == "Marker"]


def test_markers_are_a_chain_that_no_other_opening_continues() -> None:
    """Each marker names the one before it. Two publishers that open at one point go on differently."""
    framer = _framer()
    batches = [framer.take(), _publish(framer, 1), framer.take()]
    markers = _markers(*batches)
    assert [marker["previous"] for marker in markers] == [0, *(marker["continuity"] for marker in markers[:-1])]
    point = batches[-1].resume
    assert point.continuity == markers[-1]["continuity"] != 0
    successors = [Framer(SHARD, Layout(1), point, nonce=nonce) for nonce in (2, 3)]
    nexts = [_markers(_publish(each, 2))[0] for each in successors]
    assert {marker["previous"] for marker in nexts} == {point.continuity}
    assert nexts[0]["continuity"] != nexts[1]["continuity"]
    framer.start_epoch("MariaDB/0-1-9", 9, "history_lost")
    assert _markers(framer.take())[0]["previous"] == 0
    assert {marker["reader_version"] for marker in markers} == {READER_VERSION}


def test_a_stamp_goes_with_all_markers_from_then_on() -> None:
    """A stamp is said of the position at which it was made, and of later ones until the next; a new epoch has none."""
    framer = _framer()
    batches = [framer.take()]
    framer.stamp(5_000)
    batches += [_publish(framer, 1), framer.take()]
    framer.stamp(4_000)  # the source's clock was set back: the old stamp would promise too much
    batches.append(framer.take())
    framer.start_epoch("MariaDB/0-1-9", 9, "history_lost")
    batches.append(framer.take())
    assert [marker["as_of_ms"] for marker in _markers(*batches)] == [0, 5_000, 5_000, 4_000, 0]


def test_what_the_source_notes_stands_in_the_state() -> None:
    """Cursor and checksum are of the last transaction; a description is none. Annotations outlive epochs."""
    framer = _framer()
    framer.take()
    framer.annotate({"note": "x"})
    txn = SourceTransaction("MariaDB/0-1-1", "MariaDB/0-1-1", 1, [], checksum=77, cursor="bin.7:4")
    framer.add(txn, 0, 0)
    assert (framer.take().resume.checksum, framer.resume.cursor) == (77, "bin.7:4")
    assert (_publish(framer, 1, _table("shop.a", "id")).resume.checksum, framer.resume.cursor) == (77, "bin.7:4")
    assert (_publish(framer, 2).resume.checksum, framer.resume.cursor) == (0, "")
    framer.start_epoch("MariaDB/0-1-9", 9, "history_lost")
    assert framer.take().resume.annotations == {"note": "x"}
    framer.annotate({"other": "y"})
    assert framer.take().resume.annotations == {"note": "x", "other": "y"}
    framer.annotate({"note": ""})
    assert framer.take().resume.annotations == {"other": "y"}


def _newer(values: list[bytes]) -> list[bytes]:
    """The same, as the next version writes it."""
    return [announcement(schema, SHARD) for schema in SCHEMAS.values()] + topic(values, SHARD)


def test_a_source_that_goes_back_has_what_the_newer_one_described() -> None:
    """Else it would take no table for published, and pass over the rows of its backlog while its markers go on."""
    framer = _framer()
    old = _messages(framer.take(), _publish(framer, 1, BeginScope(("shop.*",)), _table("shop.a", "id", "old")))
    changes = BeginScope(("shop.*",)), _table("shop.a", "id", "new"), _table("shop.b", "id"), BindName("db.t", 7)
    values = [*old, announcement(HINT, SHARD, skippable=True), *_newer(_messages(_publish(framer, 2, *changes)))]
    found = _recovered(values)
    assert found.descriptions() == {
        each.table: each for each in (_table("shop.a", "id", "new"), _table("shop.b", "id"))
    }
    assert found.bindings() == {"db.t": 7}
    repeated = _everything(found)
    assert repeated <= set(values)
    again = [value for key in found.keys() if (value := found.value(key))]  # noqa: SIM118
    assert _recovered(again).descriptions() == found.descriptions(), "the texts come first"


def test_what_may_be_a_declaration_is_never_passed_over() -> None:
    """Nothing says what a record is, or it must be understood: the publisher says everything again in a new epoch."""
    framer = _framer()
    described = _messages(framer.take(), _publish(framer, 1, _table("shop.a", "id")))
    unknown = _recovered(topic(described, SHARD)).unreadable
    assert isinstance(unknown, CodecError)
    assert unknown.code == "unknown_schema"
    newer = [announcement(TRANSFER, SHARD), written(TRANSFER, {"shard": SHARD, "text": ""})]
    assert isinstance(_recovered([*described, *newer]).unreadable, NewerWireError)
    assert _recovered([*newer, *described]).unreadable is None, "an epoch says everything itself"


@pytest.mark.parametrize("end", [BeginScope(("shop.*",)), VoidTable("shop.a", "DDL"), VoidTable("*", "lost")], ids=str)
def test_a_backfill_that_something_has_ended_is_not_said_to_be_complete(end: Change) -> None:
    """The source would take its rows for published, and never begin it again."""
    framer = _framer()
    complete = [BackfillTable("shop.a", False), BackfillTable("shop.a", True)]
    batches = [framer.take(), _publish(framer, 1, _table("shop.a", "id"), *complete)]
    assert _recovered(_messages(*batches)).complete_tables() == {"shop.a"}
    batches.append(_publish(framer, 2, end))
    assert _recovered(_messages(*batches)).complete_tables() == frozenset()
    framer.begin_repeat(5)
    assert _recovered(_messages(framer.take())).complete_tables() == frozenset()


def test_that_a_table_is_gone_is_not_said_again() -> None:
    """Each table that is ever made and dropped would be said for ever. Who has folded it knows that it has no rows."""
    framer = _framer()
    gone = [BackfillTable("shop.a", False), BackfillTable("shop.a", True)]
    batches = [framer.take(), _publish(framer, 1, _table("shop.a", "id")), _publish(framer, 2, _table("shop.a"), *gone)]
    framer.begin_repeat(5)
    batches.append(framer.take())
    assert _recovered(_messages(*batches)).complete_tables() == frozenset()
    assert "TableBackfill" not in [decode(value)[0] for value in _messages(batches[-1])]


def test_a_new_epoch_routes_rows_by_their_whole_keys_until_their_table_is_described() -> None:
    """The prefix of before belongs to a description that ended with its epoch: no reader would look there."""
    layout, keys = Layout(64), [row_key("shop.a", [7, number]) for number in range(20)]
    framer = Framer(SHARD, layout)
    framer.start_epoch("MariaDB/0-1-0", 1, "first_start")
    framer.take()
    _publish(framer, 1, DescribeTable("shop.a", (), ("a", "b"), prefix=1))
    framer.start_epoch("MariaDB/0-1-9", 9, "history_lost")
    framer.take()
    batch = _publish(framer, 10, *(RowChange(each, VALUE, b"{}") for each in keys))
    there = {
        key: partition
        for partition, value in batch.records
        if value.startswith(ROW_FRAME_HEADER)
        for key in decode(value)[1]["keys"]
    }
    assert there == {key: layout.partition_of(key) for key in keys}


def test_a_renamed_table_does_not_take_its_old_name_from_another_one() -> None:
    """Events of two tables come in any order: who has the name by then keeps it, in each repeat and after a restart."""
    framer = _framer()
    batches = [framer.take(), _publish(framer, 1, BindName("db.t", 7)), _publish(framer, 2, BindName("db.t", 8))]
    batches.append(_publish(framer, 3, BindName("db.w", 7, "db.t")))
    assert _recovered(_messages(*batches)).bindings() == {"db.t": 8, "db.w": 7}
    framer.begin_repeat(5)
    assert _recovered(_messages(framer.take())).bindings() == {"db.t": 8, "db.w": 7}
