"""A history of shop.items in two partitions, made of transactions, and what the table is after each of them."""

from __future__ import annotations

from random import Random
from typing import Any

from stream.wire.events import ABSENT, VALUE, VOID
from tests.consumers.histories import SHARD, event, frame, gtid, key, marker, start
from tests.consumers.owning import schema

LAYOUT = "xxh3_64;buckets=4096;partitions=2"
COLUMNS = [{"name": name, "kind": kind, "exact": True} for name, kind in (("id", "int"), ("name", "varchar"))]
BEGUN = 1_700_000_000


class Shop:
    """Writes it. ``partitions``: their messages; ``states[n]``: key → (kind, image), after transaction ``n``."""

    def __init__(self, rng: Random, transactions: int = 30, *, shard: str = SHARD) -> None:
        self.partitions: list[list[bytes]] = [[], []]
        self.states: list[dict[bytes, tuple[int, bytes]]] = [{}, {}]
        self.times = [0, BEGUN]
        self._ordinals = [0, 2]
        """Last ordinal of each transaction; the first one begins the epoch and describes the table."""
        self._rng, self._shard = rng, shard
        for messages in self.partitions:
            messages.append(start(shard=shard))
            messages.append(schema(2, columns=COLUMNS, shard=shard, gtid=gtid(1)))
        waiting: list[list[dict[str, Any]]] = [[], []]
        for number in range(2, transactions + 2):
            self._transaction(number, waiting)
            if rng.random() < 0.3:
                self._flush(waiting, number)
        self._flush(waiting, transactions + 1, idle_s=2)

    def _transaction(self, number: int, waiting: list[list[dict[str, Any]]]) -> None:
        rng, state, ordinal = self._rng, dict(self.states[-1]), self._ordinals[-1]
        self.times.append(self.times[-1] + rng.choice((0, 1, 5, -3)))
        found: list[list[tuple[bytes, int, bytes, int]]] = [[], []]
        for item in rng.sample(range(1, 9), rng.randint(1, 4)):
            ordinal += 1
            kind = rng.choice((VALUE, VALUE, VALUE, ABSENT, VOID))
            image = b'{"id":%d,"name":"at %d"}' % (item, number) if kind == VALUE else b""
            found[item % 2].append((key(item), kind, image, ordinal))
            state[key(item)] = kind, image
        for rows, into in zip(found, waiting, strict=True):
            if rows:
                into.append({"rows": rows, "gtid": gtid(number), "timestamp": self.times[-1]})
        self.states.append(state)
        self._ordinals.append(ordinal)

    def _flush(self, waiting: list[list[dict[str, Any]]], number: int, idle_s: int = 0) -> None:
        clock = max(self.times) + idle_s
        for messages, transactions in zip(self.partitions, waiting, strict=True):
            if transactions:
                columns: dict[str, Any] = {
                    "transactions": [len(each["rows"]) for each in transactions],
                    "gtids": [each["gtid"] for each in transactions],
                    "timestamps": [each["timestamp"] for each in transactions],
                }
                rows = [row for each in transactions for row in each["rows"]]
                messages.append(frame(rows, shard=self._shard, **columns))
            said: dict[str, Any] = {"timestamp": self.times[number], "as_of_ms": 1000 * clock + 500, "layout": LAYOUT}
            messages.append(marker(self._ordinals[number], sequence=number, shard=self._shard, **said))
            transactions.clear()

    def at_time(self, seconds: int) -> int:
        """The last transaction before the first one that is later than a time."""
        later = (number for number, time in enumerate(self.times) if time > seconds)
        return min(later, default=len(self.times)) - 1


def void(ordinal: int, **fields: Any) -> bytes:
    """A void of the table."""
    return event("TableVoid", ordinal, table="shop.items", reason="ddl", **fields)
