"""When a partition knows all of a table, so that a key without an entry is absent."""

from __future__ import annotations

import pytest

from consumers.fold.backfills import whole_shards
from consumers.fold.entry import ABSENT, VALUE, VOID
from consumers.fold.state import head_entries, read_head
from consumers.owner.protocol import UNKNOWN_KEY
from consumers.owner.rows import view_row
from stream.wire.codec import encode
from tests.consumers.histories import SHARD, Folded, event, frame, gtid, key, marker, start, value

TABLE = "shop.items"


def topology(*shards: str) -> bytes:
    """What the shard declares of its keyspace."""
    place = {"shard": SHARD, "epoch": 1, "ordinal": 1}
    return encode("Topology", place | {"shards": [*shards], "ancestors": [], "succeeded": []})


def begun(ordinal: int, table: str = TABLE, *, epoch: int = 1) -> bytes:
    """The beginning of a backfill."""
    return event("TableBackfill", ordinal, epoch=epoch, table=table, complete=False)


def complete(ordinal: int, table: str = TABLE, *, epoch: int = 1) -> bytes:
    """Its completion."""
    return event("TableBackfill", ordinal, epoch=epoch, table=table, complete=True)


def whole(*more: bytes) -> Folded:
    """A table of one row that is whole at ordinal 4, and what follows."""
    return Folded(start(), topology(SHARD), begun(2), value(1, b"{}", 3), complete(4), marker(4), *more)


def kind(folded: Folded, number: int) -> int:
    """How a key reads."""
    return view_row(folded.state.head, key(number), folded.entries.get(key(number))).kind


def test_a_key_without_an_entry_is_absent_in_a_whole_shards() -> None:
    """It reads as if it had been deleted where the backfill was complete; keys of other tables stay unknown."""
    folded = whole(marker(9))
    row = view_row(folded.state.head, key(7), None)
    assert (row.kind, row.lo, row.hi, row.watermark) == (ABSENT, gtid(4), gtid(4), gtid(9))
    assert "complete" in row.why
    assert kind(folded, 1) == VALUE
    assert view_row(folded.state.head, key(7, "shop.others"), None).kind == UNKNOWN_KEY


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param((begun(2), value(1, b"{}", 3), marker(3)), id="not complete"),
        pytest.param((begun(2), complete(4)), id="no marker since"),
        pytest.param((begun(2), complete(4), marker(3)), id="an earlier marker"),
        pytest.param((complete(4), marker(4)), id="its beginning was not folded"),
        pytest.param((begun(5), complete(4), marker(5)), id="a repeated completion of a backfill before"),
        pytest.param((begun(5), complete(5), marker(5)), id="a completion at its own beginning"),
    ],
)
def test_before_it_is_complete_nothing_is_absent(messages: tuple[bytes, ...]) -> None:
    """What was not read yet is unknown, and so is everything for a partition that did not see it all."""
    assert kind(Folded(start(), topology(SHARD), *messages), 7) == UNKNOWN_KEY


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(event("TableVoid", 5, table=TABLE, reason="DDL"), id="void"),
        pytest.param(event("TableVoid", 5, table="*", reason="DDL"), id="void of all"),
        pytest.param(b"poison", id="poison"),
        pytest.param(frame([(b"no key", VALUE, b"{}", 5)]), id="a row without a table"),
        pytest.param(marker(5, continuity=9, previous=8), id="gap"),
        pytest.param(event("Scope", 5, tables=[]), id="scope"),
        pytest.param(start(epoch=2), id="epoch"),
        pytest.param(value(2, b"{}", 5, shard="other/0"), id="another shard"),
        pytest.param(begun(5), id="begun again"),
    ],
)
def test_whatever_voids_a_table_ends_what_is_known_of_it(message: bytes) -> None:
    """After it the key is unknown, also when the completion is said again; a further backfill makes it known anew."""
    folded = whole(marker(4, continuity=7), message, complete(4), marker(5, continuity=10, previous=9))
    assert not whole_shards(folded.state.head, TABLE)
    assert kind(folded, 7) == UNKNOWN_KEY


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(event("TableVoid", 4, table=TABLE, reason="DDL"), id="void"),
        pytest.param(event("TableVoid", 4, table="*", reason="DDL"), id="void of all"),
        pytest.param(b"poison", id="poison"),
        pytest.param(marker(4, continuity=9, previous=8), id="gap"),
        pytest.param(event("Scope", 4, tables=[]), id="scope"),
    ],
)
def test_what_is_voided_while_a_table_is_backfilled_leaves_it_unknown(message: bytes) -> None:
    """Rows that were read before the void are not read again: none of them may be absent at the completion."""
    messages = (begun(2), value(1, b"{}", 3), marker(3, continuity=7), message)
    folded = Folded(start(), topology(SHARD), *messages, complete(5), marker(5, continuity=10, previous=9))
    assert not whole_shards(folded.state.head, TABLE)
    assert (kind(folded, 1), kind(folded, 7)) == (VOID, UNKNOWN_KEY)


def test_a_void_of_another_table_ends_nothing() -> None:
    """Each table is known by itself."""
    assert kind(whole(event("TableVoid", 5, table="shop.others", reason="DDL"), marker(5)), 7) == ABSENT


def test_a_table_becomes_whole_again_and_forgets_what_it_voided() -> None:
    """After a void and another backfill a key of before the void, which was not read again, is absent."""
    folded = whole(event("TableVoid", 5, table=TABLE, reason="TRUNCATE"), marker(5))
    assert kind(folded, 1) == VOID
    for message in (begun(6), value(2, b"{}", 7), complete(8), marker(8)):
        folded.fold(message)
    assert (kind(folded, 1), kind(folded, 2), kind(folded, 3)) == (ABSENT, VALUE, ABSENT)


def test_a_row_whose_image_is_unknown_is_not_absent() -> None:
    """A row too large for the stream has an entry, and stays void."""
    folded = Folded(start(), topology(SHARD), begun(2), frame([(key(1), VOID, b"", 3)]), complete(4), marker(4))
    assert kind(folded, 1) == VOID


def test_of_several_shards_nothing_is_absent() -> None:
    """Another shard of the keyspace may have the key, though this partition has heard nothing of it yet."""
    folded = Folded(start(), topology(SHARD, "shop/1"), begun(2), complete(4), marker(4))
    assert kind(folded, 7) == UNKNOWN_KEY


def test_what_is_whole_is_found_in_the_stored_head() -> None:
    """A store that is opened again knows it too."""
    folded = whole()
    assert read_head(head_entries(folded.state.head).items()) == folded.state.head


def test_without_a_declared_topology_no_table_is_whole() -> None:
    """Who has not heard which shards a keyspace has cannot know that no other one has the key."""
    folded = Folded(start(), begun(2), value(1, b"{}", 3), complete(4), marker(4))
    assert not whole_shards(folded.state.head, TABLE)


def test_a_completion_of_a_history_that_has_ended_completes_nothing() -> None:
    """It may be said again: the rows that the new epoch's backfill has not read yet would be absent."""
    folded = Folded(start(), topology(SHARD), start(epoch=2), begun(2, epoch=2), complete(9), marker(9, epoch=2))
    assert kind(folded, 7) == UNKNOWN_KEY
    folded.fold(complete(10, epoch=2))
    folded.fold(marker(10, epoch=2))
    assert kind(folded, 7) == ABSENT


def test_a_backfill_is_complete_once() -> None:
    """Said again later it changes nothing: absent rows would be unknown until the next marker."""
    folded = whole()
    before = whole_shards(folded.state.head, TABLE)
    folded.fold(complete(9))
    assert whole_shards(folded.state.head, TABLE) == before
    assert before[SHARD].complete == 4
