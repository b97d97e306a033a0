"""Positions as plain dictionaries: domain → (server, sequence). A catalog log has the one domain 0."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=8_192)
def parsed(text: str) -> dict[int, tuple[int, int]]:
    """``MariaDB/0-1-15,1-4-7`` or ``HiveEvent/190``; "" is the empty set. The result is shared: do not change it."""
    flavor, _, rest = text.partition("/")
    if flavor == "HiveEvent":
        return {0: (0, int(rest))}
    return {int(domain): (int(server), int(sequence)) for domain, server, sequence in map(_numbers, _parts(rest))}


def _parts(text: str) -> list[str]:
    return text.split(",") if text else []


def _numbers(gtid: str) -> list[str]:
    return gtid.split("-")


def is_readable(text: str) -> bool:
    """Whether a position says anything."""
    try:
        return bool(parsed(text)) and "/" in text
    except ValueError:
        return False


def reaches(one: str, other: str) -> bool:
    """Whether ``one`` is known to be at or past ``other``."""
    mine, theirs = parsed(one), parsed(other)
    return all(
        domain in mine and (mine[domain][1] > sequence or mine[domain] == (server, sequence))
        for domain, (server, sequence) in theirs.items()
    )


def joined(one: str, other: str) -> str:
    """The least set that holds both."""
    if reaches(one, other):
        return one
    if reaches(other, one):
        return other
    least = dict(parsed(one))
    for domain, place in parsed(other).items():
        if domain not in least or place[1] > least[domain][1]:
            least[domain] = place
    return "MariaDB/" + ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(least.items()))
