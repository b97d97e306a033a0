"""Which shards a partition knows: topology, strangers, ancestors, and origins with their epochs."""

from __future__ import annotations

import pytest

from consumers.fold.declared import adopt_topology
from consumers.fold.entry import VOID, decode_entry
from consumers.fold.shards import Kin, is_succeeded, kin_of, sole_lineage
from consumers.fold.state import TOPOLOGY_PREFIX, Head, read_head
from consumers.owner.protocol import UNKNOWN_KEY
from consumers.owner.rows import view_row
from stream.wire.codec import encode
from stream.wire.events import VALUE
from tests.consumers.histories import SHARD, Folded, gtid, key, marker, start, value
from tokens.decision import ENDED

OTHER = "shop/1"


def topology(
    *shards: str,
    shard: str = SHARD,
    epoch: int = 1,
    ordinal: int = 1,
    ancestors: dict[str, int] | None = None,
    ranges: dict[str, str] | None = None,
) -> bytes:
    """What a shard declares. ``ranges``: its map, if it has one."""
    named = [{"shard": name, "epoch": at} for name, at in (ancestors or {}).items()]
    record = {"shard": shard, "epoch": epoch, "ordinal": ordinal, "shards": list(shards), "ancestors": named}
    record["ranges"] = [{"shard": name, "range": text} for name, text in (ranges or {}).items()]
    return encode("Topology", record)


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_a_succeeded_shard_stays_over_in_its_highest_epoch(before: int, after: int) -> None:
    """Whichever is said last: what it published in the higher one would be folded as if it went on."""
    head = Head()
    for ordinal, epoch in enumerate((before, after), 1):
        over = [{"shard": "shop/old", "epoch": epoch}]
        told = {"shard": SHARD, "epoch": 1, "ordinal": ordinal, "shards": [SHARD], "ancestors": [], "ranges": []}
        head.topologies |= adopt_topology(head, told | {"succeeded": over})[0]
    assert is_succeeded(head, "shop/old", 3)


def _kind(folded: Folded, number: int) -> int:
    return view_row(folded.state.head, key(number), folded.entries.get(key(number))).kind


def test_an_undeclared_second_shard_voids_everything_when_it_appears() -> None:
    """Nobody knows which keys it writes, so what is folded of the other shard may be old."""
    folded = Folded(start(), value(1, b"a", 2), marker(2), value(7, b"x", 2, shard=OTHER))
    assert folded.rejection_codes == ["second_shard"]
    assert _kind(folded, 1) == VOID
    folded.fold(marker(3, shard=OTHER))
    assert folded.rejection_codes == ["second_shard"]
    folded.fold(value(1, b"b", 4))
    assert _kind(folded, 1) == VALUE


def test_a_shard_that_declares_itself_is_still_a_stranger() -> None:
    """Only the shards that are already here can say that another one belongs to them."""
    folded = Folded(start(), value(1, b"a", 2), topology(SHARD, OTHER, shard=OTHER), start(shard=OTHER))
    assert folded.rejection_codes == ["second_shard"]
    assert _kind(folded, 1) == VOID


def test_declared_shards_share_a_partition() -> None:
    """The topology names both, so each leaves the other's entries alone."""
    folded = Folded(start(), topology(SHARD, OTHER), value(1, b"a", 2), start(shard=OTHER))
    assert (folded.rejection_codes, _kind(folded, 1)) == ([], VALUE)


def test_the_topology_of_the_keys_own_shard_counts() -> None:
    """What a stranger declares of itself makes no demand meaningless for the keys of others."""
    folded = Folded(start(), start(shard=OTHER), topology(OTHER, SHARD, shard=OTHER))
    assert kin_of(folded.state.head, SHARD) == Kin()
    assert kin_of(folded.state.head, OTHER).topology == {SHARD, OTHER}
    assert kin_of(folded.state.head, "") == Kin()


def test_a_repeated_topology_is_adopted_only_if_it_is_not_older() -> None:
    """Repeats carry their original place; of two with the same place the later one in the log counts."""
    folded = Folded(start(), topology(SHARD, ordinal=5), topology(SHARD, OTHER, ordinal=3))
    assert kin_of(folded.state.head, SHARD).topology == {SHARD}
    folded.fold(topology(SHARD, OTHER, ordinal=5))
    assert kin_of(folded.state.head, SHARD).topology == {SHARD, OTHER}
    assert folded.state.head.lineages[SHARD].ordinal == 1


def test_ancestors_count_in_the_epoch_that_declared_them() -> None:
    """After lost history the successor's positions are others, and so are the ancestor's."""
    folded = Folded(start(), topology(SHARD, ancestors={"old/0": 3}))
    assert kin_of(folded.state.head, SHARD).ancestors == {"old/0": 3}
    folded.fold(start(epoch=2))
    assert kin_of(folded.state.head, SHARD) == Kin(frozenset({SHARD}), {"old/0": ENDED})
    folded.fold(topology(SHARD, epoch=2))
    assert kin_of(folded.state.head, SHARD) == Kin(frozenset({SHARD}), {"old/0": ENDED})


def test_a_succeeded_shard_is_over() -> None:
    """Its entries are unknown keys of the successor, whose events win, and its own late events change nothing."""
    folded = Folded(start(), value(1, b"a", 2), marker(2), start(shard=OTHER, sequence=2))
    folded.fold(topology(OTHER, shard=OTHER, ancestors={SHARD: 1}))
    view = view_row(folded.state.head, key(1), folded.entries[key(1)])
    assert (view.kind, view.shard) == (UNKNOWN_KEY, OTHER)
    assert sole_lineage(folded.state.head)[0] == OTHER
    folded.fold(value(2, b"late", 9))
    folded.fold(marker(9))
    assert folded.rejection_codes == ["second_shard", "older_epoch", "older_epoch"]
    folded.fold(value(1, b"b", 3, shard=OTHER))
    assert view_row(folded.state.head, key(1), folded.entries[key(1)]).image == b"b"


def test_origins_of_two_epochs_are_not_compared() -> None:
    """After lost history at the origin a smaller position may be the newer write: nobody knows."""
    folded = Folded(start(), topology(SHARD, OTHER), start(shard=OTHER))
    folded.fold(value(1, b"a", 5, origins=[f"far/0 1 {gtid(10)}"]))
    folded.fold(value(1, b"b", 3, shard=OTHER, origins=[f"far/0 2 {gtid(4)}"]))
    assert decode_entry(folded.entries[key(1)]).kind == VOID
    folded.fold(value(2, b"a", 6, origins=[f"far/0 2 {gtid(10)}"]))
    folded.fold(value(2, b"b", 4, shard=OTHER, origins=[f"far/0 2 {gtid(4)}"]))
    assert view_row(folded.state.head, key(2), folded.entries[key(2)]).image == b"a"


def test_what_is_declared_is_durable() -> None:
    """Topology, scope, begin, continuity and the source's clock come back from the store."""
    from consumers.fold.state import head_entries

    folded = Folded(start(), topology(SHARD, OTHER, ancestors={"old/0": 3}))
    folded.fold(marker(3, continuity=17, as_of_ms=1_700_000_000_123))
    head = folded.state.head
    head.begin = 4
    assert read_head(head_entries(head).items()) == head
    assert (head.lineages[SHARD].continuity, head.lineages[SHARD].as_of_ms) == (17, 1_700_000_000_123)


def test_a_head_that_is_nested_too_deeply_is_damage() -> None:
    """A flipped bit or a hostile hand must not end the process, nor count as an empty head."""
    with pytest.raises(ValueError, match="nested too deeply"):
        read_head([(TOPOLOGY_PREFIX + b"s", b"[" * 200_000)])


def test_a_declared_shard_that_has_published_nothing_here_may_have_any_key() -> None:
    """A key without an entry is then of nobody: by the watermark of the other one its absence would be proved."""
    folded = Folded(start(), topology(SHARD, OTHER), value(1, b"a", 2), marker(2))
    assert sole_lineage(folded.state.head) == ("", None)
    row = view_row(folded.state.head, key(7), None)
    assert (row.kind, row.shard, row.watermark) == (UNKNOWN_KEY, "", "")
    folded.fold(topology(SHARD, ordinal=2))
    assert view_row(folded.state.head, key(7), None).shard == SHARD
