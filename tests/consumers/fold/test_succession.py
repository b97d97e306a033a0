"""A shard that succeeds another: it is no stranger, and the succession outlasts its own lost history."""

from __future__ import annotations

from typing import Any

import pytest

from consumers.fold.catalog_state import decode_binding, name_key
from consumers.fold.shards import is_succeeded, kin_of, sole_lineage
from consumers.fold.state import Head, head_entries, read_head
from consumers.fold.state import Topology as TopologyOf
from consumers.owner.protocol import UNKNOWN_KEY
from consumers.owner.rows import decide_row, view_row
from stream.wire.batch import Framer
from stream.wire.events import BindName, SourceTransaction, TableImage, Topology
from stream.wire.keys import Layout
from tests.consumers.fold.test_beginnings import begun
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import Folded, gtid, key, marker, start, value
from tokens import Demand, Position, Vector
from tokens.decision import ENDED

OLD, NEW = "hive/0", "hive/main"


def _at(number: int) -> str:
    return f"HiveEvent/{number}"


def _made(number: int, table_id: int = 7) -> SourceTransaction:
    place = _at(number)
    image = TableImage(table_id, "d.t", "external", "created", image=b"{}", lo=place, hi=place)
    return SourceTransaction(place, place, number, [BindName("d.t", table_id), image])


def _publish(framer: Framer, folded: Folded, *transactions: SourceTransaction) -> list[str]:
    """Folds what the publisher says; returns the codes of the rejections."""
    before = len(folded.rejection_codes)
    for transaction in transactions:
        framer.add(transaction, 0, len(transaction.changes))
    for _, message in framer.take().records:
        folded.fold(message)
    return folded.rejection_codes[before:]


def _framer(shard: str, position: int, *ancestors: tuple[str, int]) -> Framer:
    framer = Framer(shard, Layout(1))
    framer.announce(Topology((shard,), ancestors))
    framer.start_epoch(_at(position), 1, "first_start")
    return framer


def _succeeded() -> tuple[Folded, Framer, Framer]:
    folded, old, new = Folded(), _framer(OLD, 1), _framer(NEW, 3, (OLD, 1))
    assert _publish(old, folded, _made(2)) == []
    assert _publish(new, folded, _made(4, 8)) == []
    return folded, old, new


def test_a_declared_successor_is_no_stranger() -> None:
    """Its topology stands before its first event, and says that it takes the place of the shard that is here."""
    folded, _, _ = _succeeded()
    assert folded.rejection_codes == []
    assert sole_lineage(folded.state.head)[0] == NEW


def test_a_successor_of_one_shard_is_a_stranger_to_another() -> None:
    """The other one's keys may be written by it, and nobody here has said that they belong together."""
    folded = Folded(start(shard="shop/0"), topology("shop/0", "shop/1", shard="shop/0"), start(shard="shop/1"))
    folded.fold(topology("shop/2", shard="shop/2", ancestors={"shop/0": 1}))
    folded.fold(start(shard="shop/2"))
    assert folded.rejection_codes == ["second_shard"]


def test_a_succession_outlasts_the_successors_history() -> None:
    """The ancestor stays over: its entries are unknown, its events refused, and its tables taken over."""
    folded, old, new = _succeeded()
    new.start_epoch(_at(4), 2, "history_lost")
    assert _publish(new, folded, _made(5), _made(6)) == []
    head = folded.state.head
    assert is_succeeded(head, OLD, 1)
    assert sole_lineage(head)[0] == NEW
    assert set(_publish(old, folded, _made(9))) == {"older_epoch"}
    new.start_epoch(_at(6), 3, "history_lost")
    _publish(new, folded)
    assert is_succeeded(folded.state.head, OLD, 1)
    assert read_head(head_entries(head).items()) == head


@pytest.mark.parametrize("named", ["ancestors", "succeeded"])
def test_a_shard_is_succeeded_in_every_epoch_up_to_the_named_one(named: str) -> None:
    """Its earlier epochs ended before; a later one is a history of its own, which nobody has taken over."""
    parts: dict[str, Any] = {"ancestors": {}, "succeeded": {}} | {named: {OLD: 3}}
    head = Head(topologies={NEW: TopologyOf(1, 2, (NEW,), **parts)})
    assert [is_succeeded(head, OLD, epoch) for epoch in (1, 2, 3, 4)] == [True, True, True, False]
    assert not is_succeeded(head, "hive/other", 1)
    assert not is_succeeded(head, NEW, 1), "nobody succeeds itself"
    own = Head(topologies={OLD: TopologyOf(1, 2, (OLD,), **parts)})
    assert not is_succeeded(own, OLD, 1)


def test_a_state_begun_after_it_knows_the_succession_too() -> None:
    """The successor's later epochs say whose history they don't continue any more."""
    new = _framer(NEW, 3, (OLD, 1))
    new.take()
    new.start_epoch(_at(4), 2, "history_lost")
    new.take()
    new.start_epoch(_at(5), 3, "history_lost")
    folded = begun(*[message for _, message in new.take().records])
    assert is_succeeded(folded.state.head, OLD, 1)
    assert kin_of(folded.state.head, NEW).ancestors == {OLD: ENDED}


def test_a_session_of_an_ended_history_is_told() -> None:
    """What it has seen of the ancestor can be proved by nothing: its token is given up, and nothing is served."""
    shard, old = "sales/0", "orders/0"
    folded = Folded(start(shard=shard), topology(shard, shard=shard, ancestors={old: 1}), marker(61, shard=shard))
    for message in (
        start(shard=shard, epoch=2, sequence=40),
        topology(shard, shard=shard, epoch=2),
        value(1, b"other", 2, shard=shard, epoch=2),
        marker(99, shard=shard, epoch=2),
    ):
        folded.fold(message)
    row = view_row(folded.state.head, key(1), folded.entries[key(1)])
    seen = Demand(Vector({old: (1, Position.parse(gtid(50)))}), given=True)
    decide_row(row, seen, kin_of(folded.state.head, row.shard))
    assert (row.served, row.freshness) == (False, "unknown")
    assert row.why.endswith("a history that epoch 2 of sales/0 replaced")


def test_a_state_begun_in_the_middle_waits_for_the_topology() -> None:
    """Until then a shard of another keyspace may be an ancestor; after it, one that is none concerns no key."""
    shard, old, elsewhere = "sales/0", "orders/0", "bank/0"
    folded = begun(value(1, b"old", 60, shard=shard), marker(61, shard=shard))

    def served(seen_shard: str, number: int) -> bool:
        row = view_row(folded.state.head, key(1), folded.entries[key(1)])
        vector = Vector({seen_shard: (1, Position.parse(gtid(number)))})
        decide_row(row, Demand(vector, given=True), kin_of(folded.state.head, row.shard))
        return row.served

    assert not served(old, 90)
    assert not served(elsewhere, 90)
    folded.fold(topology(shard, shard=shard, ancestors={old: 1}))
    assert not served(old, 90)
    assert served(old, 50)
    assert served(elsewhere, 90)


@pytest.mark.parametrize("table_id", [7, 8])
def test_repeats_of_a_succeeded_shard_change_nothing(table_id: int) -> None:
    """Nothing fences its source, which may go on: its old bindings must neither win nor void anything."""
    folded, old = Folded(), _framer(OLD, 1)
    _publish(old, folded, _made(2))
    _publish(_framer(NEW, 3, (OLD, 1)), folded, _made(4, table_id))
    voids = dict(folded.state.head.voids)
    old.begin_repeat(0)
    assert set(_publish(old, folded)) <= {"older_epoch"}
    bound = decode_binding(folded.entries[name_key("d.t")])
    assert (bound.table_id, bound.shard) == (table_id, NEW)
    assert folded.state.head.voids == voids


def test_the_only_shard_may_be_succeeded_already() -> None:
    """The successor's topology comes before its first event: until then no shard answers for unknown keys."""
    folded = Folded(start(), value(1, b"a", 2), marker(2), topology("shop/1", shard="shop/1", ancestors={"shop/0": 1}))
    view = view_row(folded.state.head, key(1), folded.entries[key(1)])
    assert (view.kind, view.shard) == (UNKNOWN_KEY, "")


@pytest.mark.parametrize("layout", ["garbage", "xxh3_64;partitions=0", "xxh3_64;partitions=1;later=1"])
def test_a_marker_with_an_unreadable_layout_is_refused(layout: str) -> None:
    """The layout of the first marker becomes the topic's; nothing could find a key by this one."""
    folded = Folded(start(), marker(1, layout=layout), marker(2))
    assert folded.rejection_codes == ["bad_field"]
    assert folded.state.head.lineages["shop/0"].watermark == gtid(2)


def test_a_number_that_no_entry_can_hold_is_a_poison_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit the bytes of an entry ends as a rejection, wherever it comes from."""
    import struct

    def refuse(*_: object) -> None:
        struct.pack(">q", 1 << 70)

    monkeypatch.setattr("consumers.fold.messages.fold_rows", refuse)
    folded = Folded(start(), value(1, b"a", 2))
    assert folded.rejection_codes == ["bad_field"]
