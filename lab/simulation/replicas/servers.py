"""The servers of one shard, each with the set of transactions that it has, and the texts in which they tell it.

The texts are written and read here as simply as possible. Nothing of the product is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Transaction = tuple[str, int]
"""Who gave out the number (a server, with a tag; a domain; the log), and the number."""
Transactions = frozenset[Transaction]

SERVERS: Final = 3
UUIDS: Final = tuple(f"3e11fa47-71ca-11e1-9e33-c80aa942956{number}" for number in range(SERVERS))
TAGS: Final = ("", "", "", ":blue", ":Green")
FLAVORS: Final = ("MySQL56", "MariaDB", "FilePos", "HiveEvent", "Postgres")
EVENTS_A_FILE: Final = 3
BYTES_AN_EVENT: Final = 100
LOG_BYTES: Final = 0x3000_0148
"""Of one of PostgreSQL's transactions: so many that places soon have more than 32 bits."""


class Shard:
    """A shard of one flavor. Its servers replicate from each other; only MySQL's may have gaps."""

    def __init__(self, name: str, flavor: str) -> None:
        self.name = name
        self.flavor = flavor
        self.epoch = 1
        self.has: list[Transactions] = [frozenset()] * SERVERS
        self._domains = 2 if flavor == "MariaDB" else 1

    def commit(self, server: int, which: int) -> None:
        """A server commits a transaction. Where only one may give out numbers, that one does."""
        if self.flavor == "MySQL56":
            source = UUIDS[server] + TAGS[which].lower()
        else:
            domain = which % self._domains
            source, server = str(domain), domain
        number = 1 + max((each for origin, each in self.has[server] if origin == source), default=0)
        self.has[server] |= {(source, number)}

    def apply(self, to: int, origin: int, which: int) -> None:
        """A server applies one transaction of another one: of MySQL any, else the next of a domain."""
        missing = sorted(self.has[origin] - self.has[to])
        if missing and self.flavor == "MySQL56":
            self.has[to] |= {missing[which % len(missing)]}
        elif missing:
            self.has[to] |= {min(missing, key=lambda each: each[1])}

    def restore(self, server: int) -> None:
        """All servers are restored to what one of them has; its history goes on in another epoch."""
        self.has = [self.has[server]] * SERVERS
        self.epoch += 1

    def text(self, transactions: Transactions, style: int = 0, epoch: int = 0) -> str:
        """A position with its flavor. ``style``: several may be written in more ways than one.

        ``epoch``: of a history that was lost; 0: the present one. PostgreSQL counts it as a timeline.
        """
        timeline = f"{epoch or self.epoch}:" if self.flavor == "Postgres" else ""
        return f"{self.flavor}/{timeline}{self._set_text(transactions, style)}"

    def _set_text(self, transactions: Transactions, style: int) -> str:
        last = {source: max(n for each, n in transactions if each == source) for source, _ in transactions}
        match self.flavor:
            case "MySQL56":
                text = _mysql_text(transactions, one_by_one=bool(style & 1))
                return f" {text.upper()} ," if style & 2 else text
            case "MariaDB":
                return ",".join(f"{domain}-{10 + int(domain)}-{number}" for domain, number in sorted(last.items()))
            case "FilePos":
                file, event = divmod(last.get("0", 0), EVENTS_A_FILE)
                offset = event * BYTES_AN_EVENT
                return f"bin.{file:06}:{hex(offset) if style & 1 else offset}"
            case "Postgres":
                above, below = divmod(last.get("0", 0) * LOG_BYTES, 1 << 32)
                return f"{above:02x}/{below:08x}" if style & 1 else f"{above:X}/{below:X}"
            case _:
                return str(last.get("0", 0))

    def read(self, text: str) -> Transactions:
        """The transactions in a position that is written canonically."""
        _, _, body = text.partition("/")
        match self.flavor:
            case "MySQL56":
                return _mysql_set(body)
            case "MariaDB":
                parts = [each.split("-") for each in body.split(",") if each]
                return _up_to((domain, int(number)) for domain, _, number in parts)
            case "FilePos":
                file, _, offset = body.removeprefix("bin.").partition(":")
                return _up_to([("0", int(file) * EVENTS_A_FILE + int(offset) // BYTES_AN_EVENT)])
            case "Postgres":
                above, _, below = body.rpartition(":")[2].partition("/")
                return _up_to([("0", (int(above, 16) << 32 | int(below, 16)) // LOG_BYTES)])
            case _:
                return _up_to([("0", int(body))])


def _up_to(ends: Iterable[Transaction]) -> Transactions:
    return frozenset((source, number) for source, end in ends for number in range(1, end + 1))


def _mysql_text(transactions: Transactions, *, one_by_one: bool) -> str:
    parts = []
    for source in sorted({source for source, _ in transactions}):
        numbers = sorted(number for each, number in transactions if each == source)
        intervals = [str(number) for number in numbers]
        if not one_by_one:
            starts = [number for number in numbers if number - 1 not in numbers]
            ends = [number for number in numbers if number + 1 not in numbers]
            intervals = [f"{first}-{last}" for first, last in zip(starts, ends, strict=True)]
        parts.append(f"{source}:{':'.join(intervals)}")
    return ",".join(parts)


def _mysql_set(text: str) -> Transactions:
    found: set[Transaction] = set()
    for part in filter(None, text.split(",")):
        uuid, *fields = part.split(":")
        source = uuid
        for field in fields:
            if field[0].isdigit():
                first, _, last = field.partition("-")
                found |= {(source, number) for number in range(int(first), int(last or first) + 1)}
            else:
                source = f"{uuid}:{field}"
    return frozenset(found)
