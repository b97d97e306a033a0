"""Dead letters: what fronts tell of them, and which messages an operator may have put back.

Fronts tell those that are in their topic and not resolved, all of them and no others. Put back are those that this
version can read, whose bytes the topic has at the place that they name, and that do not say how far a shard is: the
last ones first, and none while something that was not folded is left between it and the next marker.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote

import httpx2

from lab.simulation.kafka.log import Draft, Header, PartitionLog, Record
from lab.simulation.naive.messages import Unreadable, read_message
from lab.simulation.operators.probes import Probe

PATH: Final = "/v1/dead-letters/shop"
ROUTE: Final = "/v1/dead-letters/{keyspace}"
PAGE: Final = "/dead-letters"
TIMEOUT_S: Final = 20.0
Letters = Mapping[str, int]
"""Letter → the size of its message."""
TRUE, OF_ANOTHER_TOPIC, CUT_SHORT, OF_ANOTHER_PLACE = range(4)
"""What a letter says of a message that was buried: the truth, or what only somebody who forges it would."""
FORGERIES: Final = 4


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


def chosen(records: Sequence[Record], back: int) -> Record:
    """One of the records, counted from the last one: mostly of those that may be put back, which are few."""
    late = [each for each in records if _may_be_late(each.value)] if back % 4 else []
    found = late or records
    return found[-1 - back // 4 % len(found)]


def letter_of(record: Record, topic: str, partition: int, forgery: int) -> Draft:
    """The letter of a consumer that could not read a message, or one that somebody has forged."""
    value, offset = record.value or b"", record.offset - (forgery == OF_ANOTHER_PLACE)
    said = {
        "code": "unknown_schema",
        "reason": "written by a later version",
        "topic": "elsewhere.events" if forgery == OF_ANOTHER_TOPIC else topic,
        "partition": str(partition),
        "offset": str(offset),
        "size": str(len(value) + (forgery == CUT_SHORT)),
    }
    headers: list[Header] = [(name, text.encode()) for name, text in said.items()]
    key = f"{said['topic']}/{partition}/{offset}".encode()
    return Draft(key, value, tuple(headers), record.timestamp_ms)


def pressed(letter: str, secret: str) -> httpx2.Request:
    """What a browser sends when its user, who gave it the secret, presses a button of the page."""
    shown = b64encode(f"operator:{secret}".encode()).decode()
    headers = {"authorization": f"Basic {shown}", "sec-fetch-site": "same-origin"}
    url = f"http://front{PAGE}/retry?keyspace=shop&letter={quote(letter, safe='')}"
    return httpx2.Request("POST", url, headers=headers, extensions={"timeout": {"read": TIMEOUT_S}})


def returnable(letters: PartitionLog, topic: str, events: Sequence[PartitionLog]) -> dict[str, bool]:
    """Unresolved letter → whether its message may be put back into ``topic``, which has the logs ``events``."""
    left = unresolved(letters)
    found: dict[str, bool] = {}
    for record in letters.read(letters.start, letters.end, letters.end):
        letter, value = (record.key or b"").decode(), record.value
        if value is None:
            found.pop(letter, None)  # what is buried under its name later is another one
        elif letter in left and letter not in found:
            name, partition, offset = letter.rsplit("/", 2)
            log = events[int(partition)] if int(partition) < len(events) else PartitionLog()
            at_its_place = [each.value for each in log.committed(int(offset), int(offset) + 1)]
            is_true = name == topic and at_its_place == [value] and left[letter] in (0, len(value))
            found[letter] = is_true and _may_be_late(value)
    lost = _lost(letters, topic)
    for letter in sorted(found, key=lambda each: int(each.rpartition("/")[2]), reverse=True):
        _, partition, offset = letter.rsplit("/", 2)
        if found[letter]:
            gone = lost.get(int(partition), set())
            found[letter] = not _is_followed(events[int(partition)], int(offset), gone)
            if found[letter]:
                gone.discard(int(offset))
    return found


def _lost(letters: PartitionLog, topic: str) -> dict[int, set[int]]:
    """By partition the offsets of which there was ever a letter, but for those that were put back."""
    lost: dict[int, set[int]] = {}
    for record in letters.read(letters.start, letters.end, letters.end):
        name, partition, offset = (record.key or b"").decode().rsplit("/", 2)
        if name == topic and record.value is not None:
            lost.setdefault(int(partition), set()).add(int(offset))
        elif name == topic and "put_back" in dict(record.headers):
            lost[int(partition)].discard(int(offset))
    return lost


def _is_followed(log: PartitionLog, offset: int, lost: set[int]) -> bool:
    """Whether one that is lost, or that nobody can read, lies behind a message and before its shard's next marker."""
    own, *behind = log.committed(offset, log.stable)
    if not read_message(own.value, {})[1]:
        return False  # it changes no state
    shard, *place = _place(own.value)
    for record in behind:
        try:
            name, _ = read_message(record.value, {})
        except Unreadable:
            return True
        if record.offset in lost:
            return True
        if name == "Marker":
            other, *at = _place(record.value)
            if other == shard and at >= place:
                return False
    return False


def _place(value: bytes | None) -> tuple[str, int, int]:
    """Shard, epoch and last ordinal of a record."""
    name, fields = read_message(value, {})
    last = max([row[3] for row in fields["rows"]]) if name == "RowFrame" else fields["ordinal"]
    return fields["shard"], fields["epoch"], last


def _may_be_late(value: bytes | None) -> bool:
    """Whether this version can read it, and it says nothing of how far a shard is."""
    try:
        return read_message(value, {})[0] not in ("Marker", "SourceState")
    except Unreadable:
        return False
