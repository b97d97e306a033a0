"""A mutable position, which the reader of a log moves in place by one transaction after another. Pure.

MariaDB's is the last sequence of each domain. MySQL's is a set of numbers for each server and tag. PostgreSQL's is the
place where a commit ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from tokens.logs import PostgresPosition
from tokens.mariadb import parse_gtid
from tokens.mysql import MysqlPosition

FLAVOR = "MariaDB/"
MYSQL_FLAVOR = "MySQL56/"
POSTGRES_FLAVOR = "Postgres/"


class Gtid(NamedTuple):
    """MariaDB's GTID event: the GTID and the flags of the transaction that begins."""

    domain: int
    server: int
    sequence: int
    flags: int

    @property
    def bare(self) -> str:
        """The text without flavor."""
        return f"{self.domain}-{self.server}-{self.sequence}"


class MysqlGtid(NamedTuple):
    """MySQL's GTID: a UUID in lower case, a tag or "", and a number."""

    uuid: str
    tag: str
    number: int

    @property
    def bare(self) -> str:
        """The text without flavor."""
        return f"{self.uuid}:{self.tag}:{self.number}" if self.tag else f"{self.uuid}:{self.number}"


@dataclass(frozen=True, slots=True)
class PostgresCommit:
    """A transaction of PostgreSQL. ``lsn``: where its commit ends, or (of a row, which can't tell) a place before that.

    A number of a transaction is used again only after 2^32 others: as long as one is read, there is no other of it.
    """

    xid: int
    lsn: int = field(compare=False)

    @property
    def bare(self) -> str:
        """The text without flavor and timeline."""
        return PostgresPosition(0, self.lsn).set_text()


ServerGtid: TypeAlias = Gtid | MysqlGtid | PostgresCommit


class GtidPosition:
    """A mutable position. ``str()`` gives the canonical text that `tokens` parses."""

    __slots__ = ("_domains", "_passed")

    flavor = FLAVOR

    def __init__(self, domains: dict[int, tuple[int, int]]) -> None:
        self._domains = domains
        self._passed = {(domain, server): last for domain, (server, last) in domains.items()}
        """(domain, server) → the last sequence that was added, or that the position began with."""

    @classmethod
    def parse(cls, text: str) -> GtidPosition:
        """Parse ``MariaDB/0-1-5,1-2-9``, with or without flavor, or ``MySQL56/…``, or ``Postgres/…``.

        Empty text is the position before everything. Raises `TokenError`.
        """
        if text.startswith(MYSQL_FLAVOR):
            return MysqlGtidSet.of(text.removeprefix(MYSQL_FLAVOR))
        if text.startswith(POSTGRES_FLAVOR):
            return PostgresPlace.of(text.removeprefix(POSTGRES_FLAVOR))
        domains: dict[int, tuple[int, int]] = {}
        for part in text.removeprefix(FLAVOR).split(","):
            if part.strip():
                domain, server, sequence = parse_gtid(part.strip())
                domains[domain] = (server, sequence)
        return cls(domains)

    def add(self, gtid: ServerGtid) -> None:
        """Add a transaction. A lower sequence than the domain's last one changes nothing."""
        assert isinstance(gtid, Gtid)
        domain, server, sequence, _ = gtid
        last = self._domains.get(domain)
        if last is None or sequence >= last[1]:
            self._domains[domain] = (server, sequence)
        self._passed[domain, server] = sequence

    def nothing(self) -> GtidPosition:
        """The position before everything, of the same kind of server."""
        return GtidPosition({})

    def advance(self, other: GtidPosition) -> None:
        """Add everything up to ``other``."""
        for (domain, server), last in sorted(other._passed.items(), key=itemgetter(1)):
            gtid = Gtid(domain, server, last, 0)
            if self.precedes(gtid):
                self.add(gtid)

    def precedes(self, gtid: ServerGtid) -> bool:
        """Whether a transaction is after the last one of its domain."""
        assert isinstance(gtid, Gtid)
        last = self._domains.get(gtid.domain)
        return last is None or gtid.sequence > last[1]

    def covers(self, other: GtidPosition) -> bool:
        """Whether every transaction of ``other`` is in this set, by domain and sequence.

        Not if it ends with the same sequence of another server: one of the two lost its history.
        """
        if other.flavor != self.flavor:
            return other.is_empty
        mine = self._domains
        return all(
            domain in mine and (mine[domain][1] > last[1] or mine[domain] == last)
            for domain, last in other._domains.items()
        )

    def has_passed(self, other: GtidPosition) -> bool:
        """Whether everything up to ``other``, which some server named since the reading began, was added.

        A server that lost what this one has may name higher sequences, but of its own.
        """
        if other.flavor != self.flavor:
            return other.is_empty
        passed = self._passed
        return all(passed.get((domain, server), -1) >= n for domain, (server, n) in other._domains.items())

    def reaches(self, other: GtidPosition) -> bool:
        """As `covers`, but only domain and sequence count."""
        if other.flavor != self.flavor:
            return other.is_empty
        mine = self._domains
        return all(domain in mine and mine[domain][1] >= n for domain, (_, n) in other._domains.items())

    def transactions_since(self, before: GtidPosition) -> set[str]:
        """The last transaction of each domain that ends otherwise than in ``before``, without flavor."""
        then = before._domains
        return {
            f"{domain}-{server}-{n}" for domain, (server, n) in self._domains.items() if then.get(domain) != (server, n)
        }

    @property
    def is_empty(self) -> bool:
        """Whether no transaction is in it."""
        return not self._domains

    @property
    def domains(self) -> dict[int, tuple[int, int]]:
        """Domain → (server, sequence) of its last transaction; a copy. MySQL has none."""
        return dict(self._domains)

    @property
    def bare(self) -> str:
        """The text without flavor, sorted by domain: ``0-1-5,1-2-9``."""
        domains = self._domains
        if len(domains) == 1:
            ((domain, (server, sequence)),) = domains.items()
            return f"{domain}-{server}-{sequence}"
        return ",".join(f"{domain}-{server}-{n}" for domain, (server, n) in sorted(domains.items()))

    def text_of(self, gtid: ServerGtid) -> str:
        """A transaction of this history, as text with its flavor."""
        return self.flavor + gtid.bare

    def __str__(self) -> str:
        return self.flavor + self.bare


class MysqlGtidSet(GtidPosition):
    """A set of MySQL's GTIDs. A replica may log them with gaps, so only inclusion says what was passed."""

    __slots__ = ("_set",)

    flavor = MYSQL_FLAVOR

    def __init__(self, gtids: MysqlPosition) -> None:
        super().__init__({})
        self._set = gtids

    @classmethod
    def of(cls, text: str) -> MysqlGtidSet:
        """Parse a set without flavor, as a server prints it. Raises `TokenError`."""
        found = MysqlPosition.parse_set(text)
        assert isinstance(found, MysqlPosition)
        return cls(found)

    def add(self, gtid: ServerGtid) -> None:
        """Add a transaction."""
        assert isinstance(gtid, MysqlGtid)
        self._set = self._set.with_number((gtid.uuid, gtid.tag), gtid.number)

    def nothing(self) -> MysqlGtidSet:
        """The empty set."""
        return MysqlGtidSet.of("")

    def advance(self, other: GtidPosition) -> None:
        """Add everything in ``other``."""
        assert isinstance(other, MysqlGtidSet)
        self._set = self.joined(other)._set

    def precedes(self, gtid: ServerGtid) -> bool:
        """Whether a transaction is not in the set."""
        assert isinstance(gtid, MysqlGtid)
        return self._set.with_number((gtid.uuid, gtid.tag), gtid.number) is not self._set

    def covers(self, other: GtidPosition) -> bool:
        """Whether every transaction of ``other`` is in this set."""
        if not isinstance(other, MysqlGtidSet):
            return other.is_empty
        return self._set.contains(other._set)

    has_passed = reaches = covers

    def transactions_since(self, before: GtidPosition) -> set[str]:
        """The only transaction that is not in ``before``, without flavor; empty if there are several."""
        if not isinstance(before, MysqlGtidSet):
            return set()
        left = self._set.difference(before._set)
        assert isinstance(left, MysqlPosition)
        return {left.set_text()} if left.count == 1 else set()

    def without(self, other: MysqlGtidSet) -> MysqlGtidSet:
        """What of this set is not in ``other``."""
        left = self._set.difference(other._set)
        assert isinstance(left, MysqlPosition)
        return MysqlGtidSet(left)

    def within(self, other: MysqlGtidSet) -> MysqlGtidSet:
        """What of this set is in ``other``, too."""
        return self.without(self.without(other))

    def joined(self, other: MysqlGtidSet) -> MysqlGtidSet:
        """The union of both."""
        both = self._set.union(other._set)
        assert isinstance(both, MysqlPosition)
        return MysqlGtidSet(both)

    @property
    def sources(self) -> dict[tuple[str, str], tuple[tuple[int, int], ...]]:
        """(UUID, tag) → closed intervals, ascending."""
        return self._set.sources

    def intervals(self, source: tuple[str, str]) -> tuple[tuple[int, int], ...]:
        """The closed intervals of one UUID and tag, ascending. Raises ``KeyError``: there are none."""
        return self._set.intervals(source)

    def extend(self, source: tuple[str, str], last: int) -> None:
        """Add the numbers that follow the last one of ``source``, up to ``last``."""
        self._set = self._set.extended(source, last)

    @property
    def bare(self) -> str:
        """The text without flavor."""
        return self._set.set_text()

    @property
    def is_empty(self) -> bool:
        """Whether no transaction is in it."""
        return not self._set.sources


class PostgresPlace(GtidPosition):
    """A place in the write-ahead log, on a timeline. Commits are read in the order in which they end there."""

    __slots__ = ("lsn", "timeline")

    flavor = POSTGRES_FLAVOR

    def __init__(self, timeline: int, lsn: int) -> None:
        super().__init__({})
        self.timeline, self.lsn = timeline, lsn

    @classmethod
    def of(cls, text: str) -> PostgresPlace:
        """Parse ``2:16/B374D848``. Raises `TokenError`."""
        found = PostgresPosition.parse_set(text)
        assert isinstance(found, PostgresPosition)
        return cls(found.timeline, found.lsn)

    def add(self, gtid: ServerGtid) -> None:
        """Add a transaction."""
        assert isinstance(gtid, PostgresCommit)
        self.lsn = max(self.lsn, gtid.lsn)

    def nothing(self) -> PostgresPlace:
        """The place before everything, on the same timeline."""
        return PostgresPlace(self.timeline, 0)

    def advance(self, other: GtidPosition) -> None:
        """Move to ``other``, if that is behind this place."""
        assert isinstance(other, PostgresPlace)
        self.lsn = max(self.lsn, other.lsn)

    def precedes(self, gtid: ServerGtid) -> bool:
        """Whether a transaction ends behind this place."""
        assert isinstance(gtid, PostgresCommit)
        return gtid.lsn > self.lsn

    def covers(self, other: GtidPosition) -> bool:
        """Whether this place is at or behind ``other``, on the same timeline."""
        if not isinstance(other, PostgresPlace):
            return other.is_empty
        return self.timeline == other.timeline and self.lsn >= other.lsn

    has_passed = reaches = covers

    @property
    def is_empty(self) -> bool:
        """Whether it is before everything."""
        return not self.lsn

    def text_of(self, gtid: ServerGtid) -> str:
        """A transaction of this history, as text with flavor and timeline."""
        assert isinstance(gtid, PostgresCommit)
        return str(PostgresPlace(self.timeline, gtid.lsn))

    @property
    def bare(self) -> str:
        """The text without flavor."""
        return PostgresPosition(self.timeline, self.lsn).set_text()
