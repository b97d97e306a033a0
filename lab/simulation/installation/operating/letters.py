"""What fronts tell of dead letters: those that are in their topic and not resolved, all of them and no others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote

import httpx2

from lab.simulation.kafka.log import PartitionLog
from lab.simulation.operators.probes import Probe

PATH: Final = "/v1/dead-letters/shop"
ROUTE: Final = "/v1/dead-letters/{keyspace}"
PAGE: Final = "/dead-letters"
Letters = Mapping[str, int]
"""Letter → the size of its message."""


def unresolved(log: PartitionLog) -> Letters:
    """The letters as their topic has them."""
    left: dict[str, int] = {}
    for record in log.read(log.start, log.end, log.end):
        letter = (record.key or b"").decode()
        if record.value is None:
            left.pop(letter, None)
        else:
            left.setdefault(letter, int(dict(record.headers)["size"] or b"0"))
    return left


def requests(left: Letters) -> Iterator[tuple[Probe, Letters]]:
    """What an operator asks a front while these are ``left``, and the letters that each answer must tell."""
    yield Probe("GET", PATH, ROUTE), left
    yield Probe("GET", PAGE, ""), left
    for letter, size in left.items():
        yield Probe("GET", f"{PATH}?letter={quote(letter, safe='')}", ROUTE), {letter: size}


def wrong(probe: Probe, response: httpx2.Response, meant: Letters) -> str:
    """What is wrong with an answer; "" if nothing is, or if the front could not ask Kafka."""
    if response.status_code != 200:
        return "it knows no such letter" if response.status_code == 404 else ""
    if probe.template:
        told = {each["id"]: each["size"] for each in response.json()["letters"]}
        return "" if told == meant else f"it tells {told}"
    missing = [letter for letter in meant if letter not in response.text]
    return f"it leaves out {missing}" if missing else ""
