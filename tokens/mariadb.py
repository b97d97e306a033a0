"""MariaDB GTID positions: ``domain-server-sequence`` for each replication domain.

Text as Vitess v0.24 reads it (`go/mysql/replication/mariadb_gtid.go`): comma list, space around parts trimmed, empty
parts skipped, the last of a repeated domain wins. Numbers are u32, u32, u64.
"""

from __future__ import annotations

import re

from .errors import TokenError
from .integers import GO_SPACE, UINT32_MAX, UINT64_MAX, excerpt, parse_unsigned
from .position import Order, Position

_SINGLE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})-([0-9]{1,18})").fullmatch
"""Most texts; what they say is in range."""
AMBIGUOUS_SERVER = 0
"""Server id in a joined position if the two sides name different servers for the same sequence.

No server has this id. So the joined position equals neither side, and the order stays UNKNOWN until the domain moves
on."""


class MariadbPosition(Position):
    """A MariaDB position: domain → (server, sequence)."""

    __slots__ = ("_domains",)
    flavor = "MariaDB"
    _counts_after = "-"

    _domains: dict[int, tuple[int, int]]

    def __init__(self, domains: dict[int, tuple[int, int]]) -> None:
        self._text = None
        self._hash = None
        self._domains = domains

    @classmethod
    def parse_set(cls, text: str) -> Position:
        if single := _SINGLE(text):
            return cls({int(single[1]): (int(single[2]), int(single[3]))})
        domains: dict[int, tuple[int, int]] = {}
        for part in text.split(","):
            gtid = part.strip(GO_SPACE)
            if gtid:
                domain, server, sequence = parse_gtid(gtid)
                domains[domain] = (server, sequence)
        return cls(domains)

    @classmethod
    def parse_first(cls, gtid: str) -> Position:
        return cls({}).append(gtid)

    @property
    def domains(self) -> dict[int, tuple[int, int]]:
        """Domain → (server, sequence); a copy."""
        return dict(self._domains)

    def contains(self, other: Position) -> bool:
        if not isinstance(other, MariadbPosition):
            return not other.flavor
        mine = self._domains
        for domain, (_, sequence) in other._domains.items():
            reached = mine.get(domain)
            if reached is None or reached[1] < sequence:
                return False
        return True

    def order(self, other: Position) -> Order:
        if not isinstance(other, MariadbPosition):
            return Order.UNKNOWN
        mine, theirs = self._domains, other._domains
        if mine == theirs:
            return Order.SAME
        ahead = behind = False
        common = 0
        for domain, (server, sequence) in mine.items():
            against = theirs.get(domain)
            if against is None:
                ahead = True
                continue
            common += 1
            if sequence > against[1]:
                ahead = True
            elif sequence < against[1]:
                behind = True
            elif server != against[0]:
                return Order.UNKNOWN
        if common < len(theirs):
            behind = True
        if ahead and behind:
            return Order.UNKNOWN
        return Order.NEWER if ahead else Order.OLDER

    def append(self, gtid: str) -> Position:
        domain, server, sequence = parse_gtid(self.without_flavor(gtid))
        reached = self._domains.get(domain)
        if reached is not None and reached[1] >= sequence:
            return self
        return MariadbPosition({**self._domains, domain: (server, sequence)})

    def union(self, other: Position) -> Position:
        if not other.flavor:
            return self
        self.require_same_flavor(other, "union")
        assert isinstance(other, MariadbPosition)
        domains = dict(self._domains)
        for domain, theirs in other._domains.items():
            mine = domains.get(domain)
            if mine is None or mine[1] < theirs[1]:
                domains[domain] = theirs
        return MariadbPosition(domains)

    def join(self, other: Position) -> Position:
        if not other.flavor or other is self:
            return self
        self.require_same_flavor(other, "join")
        assert isinstance(other, MariadbPosition)
        domains: dict[int, tuple[int, int]] = {}
        for domain, theirs in other._domains.items():
            mine = self._domains.get(domain)
            if mine is None or mine[1] < theirs[1]:
                domains[domain] = theirs
            elif mine[1] == theirs[1] and mine[0] != theirs[0]:
                domains[domain] = (AMBIGUOUS_SERVER, mine[1])
        return MariadbPosition(self._domains | domains) if domains else self

    def set_text(self) -> str:
        domains = self._domains
        if len(domains) == 1:
            (domain, (server, sequence)) = next(iter(domains.items()))
            return f"{domain}-{server}-{sequence}"
        return ",".join(f"{domain}-{server}-{sequence}" for domain, (server, sequence) in sorted(domains.items()))

    def _key(self) -> object:
        return self._domains


def parse_gtid(gtid: str) -> tuple[int, int, int]:
    """(domain, server, sequence) of one GTID without flavor. Raises `TokenError`."""
    parts = gtid.split("-")
    if len(parts) != 3:
        raise TokenError(f"MariaDB GTID {excerpt(gtid)} is not domain-server-sequence")
    domain, server, sequence = parts
    return (
        parse_unsigned(domain, UINT32_MAX, "MariaDB domain"),
        parse_unsigned(server, UINT32_MAX, "MariaDB server"),
        parse_unsigned(sequence, UINT64_MAX, "MariaDB sequence"),
    )
