"""Whatever a topic holds, in any order, the fold leaves what the naive fold makes of it (`lab.simulation.naive`).

The simulator compares both too, over histories that its models can write. Here messages come in orders that no model
writes: again, too late, with gaps, of epochs that are over, of shards that nobody declared.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from consumers.fold.backfills import live_items
from consumers.fold.messages import fold_messages
from consumers.fold.state import Head, PartitionState, head_entries
from lab.simulation.naive.facts import facts_of_bytes, facts_of_naive, first_difference
from lab.simulation.naive.partition import NaivePartition
from stream.wire.events import ABSENT, VALUE, VOID
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import LAYOUT, SHARD, event, frame, gtid, key, marker
from tests.consumers.owning import schema

OTHER = "shop/1"
HISTORIES = 30
MESSAGES = 30
TABLES = ("shop.items", "shop.orders")
NAMES = ("d.t", "d.u")


LAYOUTS = (LAYOUT, "xxh3_64;partitions=2")


class Scribe:
    """Writes messages of two shards whose ordinals mostly rise. ``sharing``: each shard names the other first.

    ``layouts``: what most markers say, and what few of them say.
    """

    def __init__(self, rng: Random, *, sharing: bool, catalog: bool, layouts: tuple[str, str] = LAYOUTS) -> None:
        self.rng, self.has_catalog, self.layouts = rng, catalog, layouts
        self.shards = (SHARD, OTHER) if rng.random() < 0.4 else (SHARD,)
        self.at = dict.fromkeys(self.shards, (1, 0))
        """Shard → its epoch and last ordinal."""
        self.links = dict.fromkeys(self.shards, 0)
        self.written: list[bytes] = []
        self.ranges = {SHARD: "-80", OTHER: "80-"} if sharing and len(self.shards) > 1 and rng.random() < 0.6 else {}
        if sharing and len(self.shards) > 1:
            self.written += [topology(*self.shards, shard=shard, ranges=self.ranges) for shard in self.shards]
        self.kinds: list[tuple[int, Any]] = [
            (2, self.rows),
            (4, self.marker),
            (1, self.start),
            (1, self.void),
            (1, self.describe),
            (1, self.scope),
            (1, self.topology),
            (2, self.backfill),
            (1, self.repeat),
        ]
        self.kinds += [(9, self.catalog), (2, self.bind)] if catalog else [(8, self.rows)]

    def history(self, messages: int = MESSAGES) -> list[bytes]:
        """Some messages."""
        weights, kinds = zip(*self.kinds, strict=True)
        while len(self.written) < messages:
            self.written.append(self.rng.choices(kinds, weights)[0]())
        return self.written

    def place(self, count: int = 1) -> tuple[str, int, int]:
        """(shard, epoch, first of ``count`` ordinals): mostly the next ones, sometimes old ones, or after a gap."""
        rng, shard = self.rng, self.rng.choice(self.shards)
        epoch, last = self.at[shard]
        chance = rng.random()
        if chance < 0.03 and not self.has_catalog:  # a table of an epoch whose start is lost is compared with its past
            epoch, last = epoch + 1, 0
        elif chance < 0.06 and epoch > 1:
            return shard, epoch - 1, rng.randint(1, 12)
        elif chance < 0.16 and last > 1:
            return shard, epoch, rng.randint(1, last)
        elif chance < 0.2:
            last += rng.randint(1, 3)
        self.at[shard] = (epoch, last + count)
        return shard, epoch, last + 1

    def repeat(self) -> bytes:
        """A message once more."""
        return self.rng.choice(self.written) if self.written else self.start()

    def rows(self) -> bytes:
        """A frame; a few rows are unreadable."""
        rng = self.rng
        count = rng.choice((1, 1, 1, 2, 3, 6))
        shard, epoch, first = self.place(count)
        bad = rng.random() < 0.04
        found: list[tuple[bytes, int, bytes, int]] = []
        for ordinal in range(first, first + count):
            operation = rng.choice((VALUE, VALUE, VALUE, ABSENT, VOID))
            image = b"%d" % ordinal if operation == VALUE and not (bad and rng.random() < 0.5) else b""
            name = rng.choice((key(rng.randint(1, 3)), key(1, TABLES[1]), b"no key" if bad else key(4)))
            if len(self.shards) > 1 and any(name == row[0] for row in found):
                name = key(100 + ordinal)  # of events of a key that was another shard's, a frame keeps only the last
            found.append((name, operation, image, ordinal))
        return frame(found, shard=shard, epoch=epoch)

    def marker(self) -> bytes:
        """A marker for what was written, sometimes for less, or one that follows another one than the last."""
        rng, shard = self.rng, self.rng.choice(self.shards)
        epoch, last = self.at[shard]
        if rng.random() < 0.1:
            shard, epoch, last = self.place()
        ordinal = rng.randint(0, last) if rng.random() < 0.15 else last
        previous, self.links[shard] = self.links[shard], rng.randint(1, 1_000)
        if rng.random() < 0.1:
            previous = rng.choice((0, 1_001))
        fields: dict[str, Any] = {
            "whole": rng.random() < 0.8,
            "as_of_ms": rng.randint(0, 9),
            "timestamp": rng.randint(1, 9),
        }
        fields |= {
            "low_water": gtid(rng.randint(0, 3)),
            "layout": self.layouts[rng.random() >= 0.97],
        }
        link = self.links[shard] if rng.random() < 0.95 else 0
        return marker(ordinal, shard=shard, epoch=epoch, continuity=link, previous=previous, **fields)

    def start(self) -> bytes:
        """A new epoch, or the beginning of the first one."""
        shard = self.rng.choice(self.shards)
        epoch, last = self.at[shard]
        if last and self.rng.random() < 0.6:
            epoch += 1
        self.at[shard] = (epoch, max(1, last if epoch == self.at[shard][0] else 1))
        return event("EpochStart", 1, shard=shard, epoch=epoch, position=gtid(self.rng.randint(0, 2)), reason="lost")

    def void(self) -> bytes:
        """A void of a table, or of everything."""
        shard, epoch, ordinal = self.place()
        table = self.rng.choice((*TABLES, *NAMES, "*"))
        return event("TableVoid", ordinal, shard=shard, epoch=epoch, table=table, reason="DDL")

    def describe(self) -> bytes:
        """A table's description."""
        shard, epoch, ordinal = self.place()
        table = self.rng.choice(TABLES)
        return schema(ordinal, table, shard=shard, epoch=epoch, cacheable=self.rng.random() < 0.5)

    def scope(self) -> bytes:
        """Which tables are published."""
        shard, epoch, ordinal = self.place()
        return event("Scope", ordinal, shard=shard, epoch=epoch, tables=[*TABLES])

    def backfill(self) -> bytes:
        """The beginning of a table's backfill, or its completion."""
        shard, epoch, ordinal = self.place()
        table, complete = self.rng.choice(TABLES), self.rng.random() < 0.6
        return event("TableBackfill", ordinal, shard=shard, epoch=epoch, table=table, complete=complete)

    def topology(self) -> bytes:
        """Which shards there are."""
        shard = self.rng.choice(self.shards)
        epoch, last = self.at[shard]
        ranges = self.rng.choice((self.ranges, self.ranges, {}, {SHARD: "-40", OTHER: "40-"}))
        ranges = ranges if len(self.shards) > 1 else {}
        return topology(*self.shards, shard=shard, epoch=epoch, ordinal=self.rng.randint(0, last), ranges=ranges)

    def bind(self) -> bytes:
        """A table's name, which may be another one than before."""
        shard, epoch, ordinal = self.place()
        name, previous = self.rng.choice(NAMES), self.rng.choice(("", *NAMES))
        number = self.rng.choice((7, 7, 8)) + 10 * self.shards.index(shard)
        return event(
            "NameBinding", ordinal, shard=shard, epoch=epoch, name=name, table_id=number, previous_name=previous
        )

    def catalog(self) -> bytes:
        """What happens to a table."""
        rng = self.rng
        shard, epoch, ordinal = self.place()
        number = 7 + 10 * self.shards.index(shard)
        txn, write_id = rng.randint(1, 3), rng.randint(1, 5)
        pairs = [
            {"table_id": rng.choice((number, number, number + 1)), "write_id": rng.randint(1, 5)}
            for _ in range(rng.randint(1, 2))
        ]
        listed = rng.choice(
            (f"d.t:{write_id}:{write_id}:{write_id}:", f"d.t:{write_id + 1}:9:1:{write_id}", f"d.t:{write_id}:9::")
        )
        before = gtid(rng.randint(max(1, ordinal - 4), ordinal))
        image = {
            "table_id": number,
            "name": rng.choice(NAMES),
            "kind": rng.choice(("transactional", "transactional", "external")),
        }
        image |= {"change": rng.choice(("created", "written", "written", "written", "image", "image", "dropped"))}
        image |= {"txn": rng.choice((0, txn)), "write_id": rng.choice((0, 0, write_id)), "staged": rng.random() < 0.4}
        image |= {
            "image": rng.choice((None, b"%d" % ordinal, b"%d" % ordinal)),
            "write_ids": rng.choice((None, None, listed)),
        }
        image |= {"lo": rng.choice(("", before)), "hi": rng.choice(("", gtid(ordinal)))}
        image |= {"struct": rng.choice((None, b"\0"))}
        of_set = {"kind": rng.choice(("partition", "statistics")), "table_id": number}
        named = {"name": rng.choice(('["a"]', '["b"]')), "change": rng.choice(("image", "image", "written", "dropped"))}
        name, fields = rng.choice(
            (
                (
                    "AllocWriteId",
                    {"table_id": number, "txn": txn, "write_id": write_id, "reallocated": rng.random() < 0.2},
                ),
                ("TableImage", image),
                ("TableImage", image),
                ("CatalogObject", image | of_set | named),
                ("CatalogObject", image | of_set | named),
                (
                    "CatalogSet",
                    of_set
                    | {"change": rng.choice(("begun", "complete", "void")), "lo": image["lo"], "reason": f"{ordinal}"},
                ),
                ("CommitTxn", {"txn": txn, "write_ids": pairs}),
                ("AbortTxn", {"txn": txn, "write_ids": pairs, "reconciled": False}),
                (
                    "WriteIdsReset",
                    {"table_id": number, "write_ids": listed, "committed": rng.choice((None, True, False))},
                ),
            )
        )
        return event(name, ordinal, shard=shard, epoch=epoch, **fields)


@pytest.mark.parametrize("begin", [0, 5])
@pytest.mark.parametrize("sharing", [True, False])
@pytest.mark.parametrize("catalog", [False, True])
def test_any_messages_are_folded_by_the_rules(begin: int, sharing: bool, catalog: bool) -> None:
    """State and dead letters are the naive fold's, whether the fold began with the topic or in its middle."""
    for number in range(HISTORIES):
        rng = Random(f"{number} {sharing} {catalog}")
        records = list(enumerate(Scribe(rng, sharing=sharing, catalog=catalog).history()))[begin:]
        naive = NaivePartition(begin)
        entries: dict[bytes, bytes] = {}
        state, letters = PartitionState(Head(offset=begin, begin=begin), entries.get), []
        for offset, value in records:
            naive.fold(offset, value)
            for changes in fold_messages(state, [(offset, value)]):
                changes.put_into(entries)
                state.apply(changes)
                letters += [(changes.offset - 1, letter.code) for letter in changes.rejections]
            living = dict(live_items(state.head, (entries | head_entries(state.head)).items()))
            found = first_difference(facts_of_bytes(living), facts_of_naive(naive, state.head.offset))
            assert not found, f"history {number}, offset {offset}: {found}"
            assert sorted(letters) == sorted(naive.letters), f"history {number}, offset {offset}"
            head = state.head
            assert set(head.waiting) == {scope for scope, void in head.voids.items() if not void.floor}
            assert {shard for _, shard in head.voids} <= head.lineages.keys()
