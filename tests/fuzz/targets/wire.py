"""What is read from Kafka: Avro records, histories of them folded, states to resume from, letters, announcements."""

from __future__ import annotations

import json
from typing import Any

from consumers.fold.catalog_state import decode_binding, decode_table
from consumers.fold.entry import VALUE, decode_entry
from consumers.fold.messages import fold_message, fold_messages
from consumers.fold.state import CATALOG, META, NAME_PREFIX, Head, PartitionState, head_entries, read_head
from consumers.owner.evidence import tag_of
from consumers.owner.rows import judge_fill, view_row
from consumers.owner.tables import MissingWriteIds, answer_from_state, view_table
from stream.kafka.connection import KafkaCluster
from stream.kafka.dead_letters import DeadLetter, _letter
from stream.kafka.locations import LocationsReader
from stream.publish.resume import ResumeError, resume_point
from stream.wire.announced import fingerprint_of
from stream.wire.checks import check
from stream.wire.codec import RECORDS, CodecError, NewerWireError, decode, encode
from stream.wire.single import read_long, read_single, single_prefix
from tests.consumers.histories import LAYOUT, SHARD, encode_version_1, frame, gtid, key, marker, start
from tests.fuzz.engine import Case, Misbehaved, Target, refused
from tests.fuzz.mutate import INTEGERS, TEXTS, Rng, some_bytes, some_tree
from tokens import Demand, Position, ValidWriteIdList, Vector, decide

FRESH_KEY = 999_999
_TABLE = {"table_id": 7, "name": "d.t", "kind": "transactional", "txn": 3, "write_id": 2, "staged": False}
_IMAGE = {"image": b'{"v":1}', "write_ids": "d.t:2:2:2:", "lo": gtid(4), "hi": gtid(4)}
_COLUMNS = [{"name": "id", "kind": "int", "exact": True}]
_STATE: dict[str, Any] = {
    "layout": LAYOUT,
    "low_water": gtid(0),
    "partial_gtid": "",
    "partial_events": 0,
    "sequence": 1,
    "whole": True,
    "opened": [{"txn": 3, "write_ids": [{"table_id": 7, "write_id": 2}], "seen_open": True, "wrote": [7]}],
    "closed": [1],
}
_LATER = '{"name":"freshet.Later","type":"record","fields":[{"name":"shard","type":"string"}]}'
EVENTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("EpochStart", {"position": gtid(0), "reason": "first_start"}),
    ("TableVoid", {"table": "shop.items", "reason": "DDL"}),
    ("TableVoid", {"table": "*", "reason": "DDL"}),
    (
        "TableSchema",
        {"table": "shop.items", "columns": _COLUMNS, "primary_key": ["id"], "cacheable": True, "reason": ""},
    ),
    ("TableBackfill", {"table": "shop.items", "complete": False}),
    ("TableBackfill", {"table": "shop.items", "complete": True}),
    ("Scope", {"tables": ["shop.*"]}),
    ("Topology", {"shards": [SHARD, "shop/1"], "ancestors": [{"shard": "old/0", "epoch": 1}]}),
    ("SchemaText", {"name": "Later", "fingerprint": fingerprint_of(_LATER), "text": _LATER, "skippable": True}),
    ("NameBinding", {"name": "d.t", "table_id": 7, "previous_name": ""}),
    ("NameBinding", {"name": "d.u", "table_id": 7, "previous_name": "d.t"}),
    ("TableImage", _TABLE | _IMAGE | {"change": "created"}),
    ("TableImage", _TABLE | _IMAGE | {"change": "written", "image": None, "write_ids": None}),
    ("TableImage", _TABLE | _IMAGE | {"change": "written", "staged": True}),
    ("TableImage", _TABLE | _IMAGE | {"change": "image"}),
    ("TableImage", _TABLE | _IMAGE | {"change": "dropped", "image": None}),
    ("AllocWriteId", {"table_id": 7, "txn": 3, "write_id": 2, "reallocated": False}),
    ("CommitTxn", {"txn": 3, "write_ids": [{"table_id": 7, "write_id": 2}]}),
    ("AbortTxn", {"txn": 3, "write_ids": [{"table_id": 7, "write_id": 2}], "reconciled": False}),
    ("WriteIdsReset", {"table_id": 7, "write_ids": "d.t:5:5:5:", "committed": None}),
    ("SourceState", _STATE),
)


def event(name: str, ordinal: int, fields: dict[str, Any]) -> bytes:
    """Any event but a frame or a marker."""
    place = {"shard": SHARD, "epoch": 1, "ordinal": ordinal, "gtid": gtid(ordinal), "timestamp": 1_700_000_000}
    return encode(name, place | {"position": gtid(ordinal)} | fields)


def valid(rng: Rng, ordinal: int) -> bytes:
    """A message as a publisher writes it."""
    kind = rng.randrange(10)
    if kind < 5:
        image = b'{"n":%d}' % ordinal if kind else b""
        return frame([(key(rng.randrange(5)), 1 if kind else 2, image, ordinal)])
    if kind == 5:
        rows = [(key(each), 1, b"{}", ordinal + each) for each in range(3)]
        return frame(rows, origins=[f"old/0 {gtid(each, 1)}" for each in range(3)])
    if kind == 6:
        return marker(ordinal)
    name, fields = rng.choice(EVENTS)
    return event(name, ordinal, fields)


def hostile_field(rng: Rng) -> Any:
    """A value of some Avro type, extreme."""
    numbers, texts = rng.choice(INTEGERS), rng.choice(TEXTS).encode("utf-8", "replace").decode()
    return rng.choice(
        (numbers, texts, texts.encode(), numbers, gtid(numbers), True, None, [], [numbers], [texts], [b""])
    )


FOREIGN = ("HiveEvent/7", "MySQL56/00010203-0405-0607-0809-0a0b0c0d0e0f:1-5", "FilePos/bin.000001:4", "MariaDB/9-9-9")
"""Positions that a shard of MariaDB's never has."""
LIES: dict[str, tuple[Any, ...]] = {
    "shard": ("other/0", "shop/0 ", "*"),
    "epoch": (-1, 0, 1, 2, 3, 2**31, 2**63 - 1),
    "ordinal": (-1, 0, 1, 2, 2**31, 2**63 - 1),
    "timestamp": (-1, 0, 2**63 - 1),
    **dict.fromkeys(("gtid", "position", "low_water", "lo", "hi"), FOREIGN),
    "txn": (-1, 0, 2**63 - 1),
    "table_id": (-1, 0, 2**63 - 1),
    "write_id": (-1, 0, 2**63 - 1),
    "write_ids": ("d.t:9223372036854775807:1::1", "other:1:1:1:", "d.t:1:1:1:9"),
    "whole": (True, False),
}
"""Field → values that are well-formed, but contradict the earlier messages."""


def lying(rng: Rng, ordinal: int) -> bytes:
    """A well-formed message that some other program might write: epochs go back, positions are of another flavor."""
    name, fields = decode(valid(rng, ordinal))
    able = [each for each in fields if each in LIES]
    for each in rng.sample(able, min(len(able), rng.choice((1, 1, 2, 4)))):
        fields[each] = rng.choice(LIES[each])
    for column in ("gtids", "positions"):
        if fields.get(column) and rng.random() < 0.2:
            fields[column] = [rng.choice(FOREIGN) for _ in fields[column]]
    try:
        return encode(name, fields)
    except (CodecError, KeyError, TypeError, AttributeError):
        return valid(rng, ordinal)  # the field has another type in this record


def mutated(rng: Rng, ordinal: int, corpus: list[bytes]) -> bytes:
    """A valid message with its fields or its bytes changed."""
    if rng.random() < 0.3:
        return lying(rng, ordinal)
    message = valid(rng, ordinal)
    if rng.random() < 0.5:
        name, fields = decode(message)
        try:
            return encode(name, some_tree(rng, fields, hostile_field))
        except (CodecError, KeyError):
            pass
    return some_bytes(rng, [message, *corpus])


def corpus() -> list[bytes]:
    """One message of each kind."""
    found = [event(name, 2, fields) for name, fields in EVENTS]
    frames = [frame([(key(n), VALUE, b"{}" * size, 2 + n) for n in range(size)]) for size in (1, 9)]
    older = [encode_version_1("RowFrame", decode(each)[1]) for each in frames]
    return [*found, start(), marker(5), *frames, *older]


def _checked(name: str, record: dict[str, Any]) -> bool:
    check(name, record)
    return True


def _codec() -> Case:
    seeds = corpus()
    prefix = single_prefix(SHARD, 1)

    def run(message: bytes) -> None:
        row = read_single(message, len(prefix)) if message.startswith(prefix) else None
        found = refused(CodecError, decode, message)
        if row is not None and read_long(row[5]) is not None and row[4].isascii() and found is None:
            raise Misbehaved(f"the short reader took {row} from an invalid record")
        if found is None:
            return
        name, record = found
        if name not in RECORDS:
            raise Misbehaved(f"{name} is not a record")
        valid = refused((CodecError, NewerWireError), _checked, name, record)
        again = refused(CodecError, encode, name, record)
        if again is None and (valid or name != "RowFrame"):
            raise Misbehaved(f"a valid {name} is not encoded")
        if again is not None and decode(again) != found and "nan" not in repr(record):
            raise Misbehaved(f"{name} is encoded to another record")

    return Case(lambda rng: mutated(rng, rng.randrange(1, 9), seeds), run)


Records = list[tuple[int, bytes | None]]


class _Partition:
    """A partition in memory."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.state = PartitionState(Head(), self.entries.get)
        self.dead: list[tuple[int, str]] = []

    def one_by_one(self, records: Records) -> _Partition:
        for offset, message in records:
            changes = fold_message(self.state, offset, message)
            changes.put_into(self.entries)
            self.state.apply(changes)
            self.dead += [(offset, letter.code) for letter in changes.rejections]
        return self

    def together(self, records: Records) -> _Partition:
        for changes in fold_messages(self.state, records):
            changes.put_into(self.entries)
            self.state.apply(changes)
            self.dead += [(changes.offset - 1, letter.code) for letter in changes.rejections]
        return self

    @property
    def everything(self) -> Any:
        return self.entries, head_entries(self.state.head), self.dead


def _fold() -> Case:
    seeds = corpus()

    def draw(rng: Rng) -> Records:
        messages: list[bytes | None] = [start()]
        for ordinal in range(2, rng.choice((3, 4, 6, 10))):
            hostile = rng.random() < 0.4
            messages.append(mutated(rng, ordinal, seeds) if hostile else valid(rng, ordinal))
        if rng.random() < 0.02:
            messages.append(None)
        return list(enumerate(messages))

    def run(records: Records) -> None:
        one = _Partition().one_by_one(records)
        if _Partition().together(records).everything != one.everything:
            raise Misbehaved("messages folded together give another state than one by one")
        _readable(one)
        _goes_on(one)

    return Case(draw, run)


def _readable(partition: _Partition) -> None:
    """Whatever was folded can be stored, read back, and asked for: the answer is at worst "unknown"."""
    head, stored = partition.state.head, head_entries(partition.state.head)
    if read_head(stored.items()) != head:
        raise Misbehaved(f"the head {head} is not what it is stored as")
    demand = Demand(Vector({SHARD: (1, Position.parse(gtid(3)))}), given=True)
    for name, value in partition.entries.items():
        if name.startswith(NAME_PREFIX):
            decode_binding(value)
        elif name.startswith(CATALOG):
            _table_readable(head, value, demand)
        elif not name.startswith(META):
            view = refused(UnicodeDecodeError, view_row, head, name, value)
            if view is not None:
                decide(demand, tag_of(view))
                judge_fill(head, name, view, gtid(5))


def _table_readable(head: Head, value: bytes, demand: Demand) -> None:
    state = decode_table(value)
    listed = Demand(demand.vector, ValidWriteIdList.parse("d.t:2:2:2:"), state.table_id, given=True)
    for each in (demand, listed):
        found = view_table(head, state, state.table_id, b"")
        found.epoch = state.epoch
        refused(MissingWriteIds, answer_from_state, found, state, each, head.voids)


def _goes_on(partition: _Partition) -> None:
    """The next good row is folded as if nothing had been."""
    head = partition.state.head
    lineage = head.lineages.get(SHARD)
    epoch, ordinal = (lineage.epoch, lineage.ordinal + 1) if lineage else (1, 1)
    for (_, shard), void in head.voids.items():
        if shard == SHARD and void.epoch == epoch:
            ordinal = max(ordinal, void.ordinal + 1)  # a row that could not be read had an ordinal too
    if ordinal >= 2**63 - 2 or epoch >= 2**63 - 1:
        return  # a record that says so is valid, and the last of its history
    image = b'{"good":1}'
    records: Records = [
        (head.offset, frame([(key(FRESH_KEY), VALUE, image, ordinal)], epoch=epoch, gtids=[gtid(7)])),
        (head.offset + 1, marker(ordinal, sequence=7, epoch=epoch, layout=head.layout or LAYOUT)),
    ]
    letters = len(partition.dead)
    partition.one_by_one(records)
    if len(partition.dead) > letters:
        raise Misbehaved(f"a good message after it is a dead letter: {partition.dead[letters:]}")
    entry = decode_entry(partition.entries[key(FRESH_KEY)])
    if (entry.kind, entry.image, entry.ordinal) != (VALUE, image, ordinal):
        raise Misbehaved(f"a good row after it became {entry}")
    view = view_row(partition.state.head, key(FRESH_KEY), partition.entries[key(FRESH_KEY)])
    wanted = Demand(Vector({SHARD: (epoch, Position.parse(gtid(7)))}), given=True)
    if view.kind != VALUE or decide(wanted, tag_of(view))[0].value != "fresh":
        raise Misbehaved(f"a good row after it reads as {view}")


def _resume() -> Case:
    states = [decode(event("SourceState", 5, _STATE | {"sequence": n, "whole": n == 1}))[1] for n in (1, 2, 3)]

    def draw(rng: Rng) -> Any:
        return some_tree(rng, states, hostile_field)

    def run(drawn: Any) -> None:
        encoded = []
        for each in drawn if isinstance(drawn, list) else [drawn]:
            try:
                encoded.append(encode("SourceState", each))
            except (CodecError, AttributeError, TypeError):
                continue  # what cannot be written cannot be read
        refused(ResumeError, resume_point, [decode(each)[1] for each in encoded])

    return Case(draw, run)


class _Message:
    """A message of Kafka's client, as far as a reader looks at it."""

    def __init__(self, name: bytes | None, content: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
        self._parts = name, content, headers

    def key(self) -> bytes | None:
        return self._parts[0]

    def value(self) -> bytes | None:
        return self._parts[1]

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._parts[2] or None

    def offset(self) -> int:
        return 7


def _letters() -> Case:
    good = {"code": "x", "reason": "y", "topic": "t", "partition": "0", "offset": "7", "size": "3"}
    values = corpus()

    def draw(rng: Rng) -> _Message:
        headers: Any = some_tree(rng, good)
        pairs = headers.items() if isinstance(headers, dict) else [("code", None)]
        raw = [(str(name), None if value is None else _bytes_of(value)) for name, value in pairs]
        return _Message(b"t/0/7", some_bytes(rng, values), raw)

    def run(message: Any) -> None:
        found: DeadLetter | None = _letter(message)
        if found is not None:
            found.problem(), found.id, found.is_complete

    return Case(draw, run)


def _bytes_of(value: Any) -> bytes:
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else repr(value).encode()


def _announcements() -> Case:
    good = {
        "keyspace": "shop",
        "partition": 0,
        "address": "127.0.0.1:7",
        "instance": "a",
        "layout": LAYOUT,
        "started_at": 1,
        "positions": {SHARD: gtid(1)},
        "gone": False,
        "generation": 3,
        "later": [1, {"x": 2}],
    }
    seeds = [json.dumps(good).encode(), b'{"x":' + b"[" * 20_000, b"{" + b'"x":{' * 20_000, b"", b"null"]

    def draw(rng: Rng) -> _Message:
        if rng.random() < 0.5:
            text = json.dumps(some_tree(rng, good), ensure_ascii=rng.random() < 0.5)
            return _Message(b"shop/0", text.encode("utf-8", "surrogatepass"), [])
        return _Message(some_bytes(rng, [b"shop/0"]), some_bytes(rng, seeds), [])

    reader = LocationsReader(KafkaCluster("127.0.0.1:1"))
    owner = _Message(b"bank/1", json.dumps(good | {"keyspace": "bank", "partition": 1}).encode(), [])

    def run(message: Any) -> None:
        reader._learn([message, owner])
        if reader.owner_of("bank", 1) is None:
            raise Misbehaved("a good announcement after it is not known")

    return Case(draw, run)


TARGETS: tuple[Target, ...] = (
    Target("codec", "Avro records, and the short reader of one row", _codec),
    Target("fold", "histories with mutated messages, folded; then read, and folded on", _fold, 0.6),
    Target("resume", "publisher states that a source resumes from", _resume, 0.5),
    Target("letters", "dead letters", _letters),
    Target("announcements", "freshet.locations", _announcements, 0.5),
)
