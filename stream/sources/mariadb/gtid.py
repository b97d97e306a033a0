"""A mutable MariaDB GTID position, which the binlog reader moves in place by one transaction after another. Pure."""

from __future__ import annotations

from tokens.mariadb import parse_gtid

FLAVOR = "MariaDB/"


class GtidPosition:
    """A mutable position. ``str()`` gives the canonical text that `tokens` parses."""

    __slots__ = ("_domains",)

    def __init__(self, domains: dict[int, tuple[int, int]]) -> None:
        self._domains = domains

    @classmethod
    def parse(cls, text: str) -> GtidPosition:
        """Parse ``MariaDB/0-1-5,1-2-9``, with or without flavor; empty text is the position before everything.

        Raises `TokenError`.
        """
        domains: dict[int, tuple[int, int]] = {}
        for part in text.removeprefix(FLAVOR).split(","):
            if part.strip():
                domain, server, sequence = parse_gtid(part.strip())
                domains[domain] = (server, sequence)
        return cls(domains)

    def add(self, domain: int, server: int, sequence: int) -> None:
        """Add a transaction to the set. A lower sequence than the domain's last one changes nothing."""
        last = self._domains.get(domain)
        if last is None or sequence >= last[1]:
            self._domains[domain] = (server, sequence)

    def precedes(self, domain: int, sequence: int) -> bool:
        """Whether ``sequence`` is after the last one of its domain."""
        last = self._domains.get(domain)
        return last is None or sequence > last[1]

    def covers(self, other: GtidPosition) -> bool:
        """Whether every transaction of ``other`` is in this set, by domain and sequence.

        Not if it ends with the same sequence of another server: one of the two lost its history.
        """
        mine = self._domains
        return all(
            domain in mine and (mine[domain][1] > last[1] or mine[domain] == last)
            for domain, last in other._domains.items()
        )

    @property
    def domains(self) -> dict[int, tuple[int, int]]:
        """Domain → (server, sequence) of its last transaction; a copy."""
        return dict(self._domains)

    @property
    def bare(self) -> str:
        """The text without flavor, sorted by domain: ``0-1-5,1-2-9``."""
        domains = self._domains
        if len(domains) == 1:
            ((domain, (server, sequence)),) = domains.items()
            return f"{domain}-{server}-{sequence}"
        return ",".join(f"{domain}-{server}-{n}" for domain, (server, n) in sorted(domains.items()))

    def __str__(self) -> str:
        return FLAVOR + self.bare
