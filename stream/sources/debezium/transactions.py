"""Puts transactions together from topics that are read side by side. Pure.

Nothing says in which order messages of several topics arrive. So a transaction is taken once its end was seen and,
after that, every topic was read up to where it ended then: Debezium had written all that comes before the end in the
binlog, and Kafka Connect makes it visible together (``exactly.once.support = required``).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from stream.sources.debezium.messages import End, RowMessage, Statement
from stream.sources.mariadb.gtid import ServerGtid

ROUNDS_MAX: Final = 2
"""Rounds after which everything that comes before a statement in the binlog is published.

A round takes the ends that were seen before it looked where the topics end. What comes before a statement is read in
the next round at the latest, and taken in the one after.
"""
_MESSAGE_OVERHEAD: Final = 500
"""Bytes counted for a row in addition to its images."""


class Place(NamedTuple):
    """Where a message is."""

    topic: str
    partition: int
    offset: int


@dataclass(slots=True)
class Transaction:
    """A whole transaction. ``rows``: in its own order. ``voids``: table → why its rows are not known."""

    gtid: ServerGtid
    timestamp: int
    rows: list[RowMessage]
    voids: dict[str, str]


@dataclass(slots=True)
class _Open:
    rows: list[RowMessage] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    is_lost: bool = False
    """There was no room for its rows."""
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    """Topic and partition → the offset of its first message."""


@dataclass(slots=True)
class _Seen:
    statement: Statement
    place: Place
    rounds: int = 0


class Assembler:
    """Collects messages, in any order of their topics, and gives whole transactions in the order of their ends.

    ``is_published``: whether a transaction is out already, so that a connector may repeat it. ``is_read``: whether a
    table's topic is read. ``bytes_max``: of all rows that are held; a transaction without room voids its tables.
    """

    def __init__(
        self, is_published: Callable[[ServerGtid], bool], is_read: Callable[[str], bool], bytes_max: int
    ) -> None:
        self._is_published = is_published
        self._is_read = is_read
        self._bytes_max = bytes_max
        self._open: dict[ServerGtid, _Open] = {}
        self._ends: deque[tuple[End, Place]] = deque()
        self._statements: list[_Seen] = []
        self._bytes = 0
        """Of all rows that are held."""
        self._taken = 0
        """Of the ends, how many the present round takes."""
        self._schemas: dict[bytes, bytes] = {}

    def row(self, message: RowMessage, place: Place) -> None:
        """Add a row of a transaction that may not have ended yet."""
        if self._is_published(message.transaction):
            return
        found = self._open.setdefault(message.transaction, _Open())
        found.counts[message.table] += 1
        found.starts.setdefault((place.topic, place.partition), place.offset)
        size = len(message.before) + len(message.after) + _MESSAGE_OVERHEAD
        if found.is_lost or self._bytes + size > self._bytes_max:
            self._bytes -= found.bytes
            found.rows, found.bytes, found.is_lost = [], 0, True
            return
        found.bytes += size
        self._bytes += size
        message.schema = self._schemas.setdefault(message.schema, message.schema)
        found.rows.append(message)

    def end(self, end: End, place: Place) -> None:
        """Add the end of a transaction."""
        if not self._is_published(end.gtid):
            self._ends.append((end, place))

    def statement(self, statement: Statement, place: Place) -> None:
        """Add a statement that is a transaction of its own. One may come in several messages."""
        self._statements.append(_Seen(statement, place))

    @property
    def has_news(self) -> bool:
        """Whether a round has something to do."""
        return bool(self._ends or self._statements)

    def begin_round(self) -> None:
        """What has ended by now is taken once everything before it is read. Look then where the topics end."""
        self._taken = len(self._ends)

    def transactions(self) -> list[Transaction]:
        """The transactions of this round. Every topic was read up to where it ended after the round began."""
        return [self._whole(end) for end, _ in list(self._ends)[: self._taken]]

    def drop(self, gtid: ServerGtid) -> None:
        """Forget a transaction that is published, the first one of the round."""
        found = self._open.pop(gtid, None)
        self._bytes -= found.bytes if found is not None else 0
        self._ends.popleft()
        self._taken -= 1

    def unended_beside(self, gtid: ServerGtid) -> list[str]:
        """The tables of transactions that the position has passed, by that of ``gtid``, though they have not ended."""
        passed = [each for key, each in self._open.items() if key != gtid and self._is_published(key)]
        return sorted({table for each in passed for table in each.counts})

    def end_round(self) -> list[Statement]:
        """The statements before which everything is published; `forget` each once it is.

        One that has rows (CREATE TABLE … SELECT) is published by its end.
        """
        for seen in self._statements:
            seen.rounds += 1
        if not self._open:
            self._schemas.clear()
        ending = self._open.keys() | {end.gtid for end, _ in self._ends}
        done = [seen.statement for seen in self._statements if seen.rounds > ROUNDS_MAX]
        return [each for each in done if each.gtid not in ending]

    def forget(self, statement: Statement) -> None:
        """Forget a statement that is published."""
        self._statements = [seen for seen in self._statements if seen.statement is not statement]

    def starts(self, reached: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Where to read again what is not published. ``reached``: topic and partition → the next offset."""
        found = dict(reached)
        places = [place for _, place in self._ends] + [seen.place for seen in self._statements]
        places += [Place(*key, offset) for each in self._open.values() for key, offset in each.starts.items()]
        for topic, partition, offset in places:
            at = (topic, partition)
            found[at] = min(offset, found.get(at, offset))
        return found

    def _whole(self, end: End) -> Transaction:
        found = self._open.get(end.gtid) or _Open()
        voids = {}
        told = dict(end.counts)
        for table in told.keys() | found.counts.keys():
            if self._is_read(table) and told.get(table, 0) != found.counts[table]:
                voids[table] = f"the connector counts {told.get(table, 0)} events, and there are {found.counts[table]}"
            elif found.is_lost and found.counts[table]:
                voids[table] = f"more than {self._bytes_max} bytes of events are not published yet"
        rows = sorted(found.rows, key=lambda row: row.order)
        timestamp = max([end.timestamp, *(row.timestamp for row in rows)])
        return Transaction(end.gtid, timestamp, rows, voids)
