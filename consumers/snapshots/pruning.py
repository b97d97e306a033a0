"""Which snapshots of a keyspace are still needed, and the removal of the others.

Needed are, of each fold version that can go on with the topic, the newest ones, the newest verified one, and the newest
that was folded from the topic's beginning: once retention has cut the topic, an audit could begin with no other. One of
both may have begun elsewhere than the live state, so neither takes the other's place. A snapshot that the topic can no
longer continue is of no use, unless it is the last one. One that is ahead of the topic is of an end that Kafka has
lost: it comes last, however new it is, or it would take the place of those that were made since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from consumers.snapshots.finding import Found
from consumers.snapshots.manifest import MANIFEST_NAME, Snapshot
from consumers.snapshots.places import Place

UNFINISHED_S: Final = 86_400
"""A snapshot without a manifest that was begun so long ago has no writer any more."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a snapshot stays, and why."""

    found: Found
    stays: bool
    why: str


NO_ENDS: Final[Mapping[int, int]] = {}


def judge(
    found: list[Found],
    topic_id: str,
    low: Mapping[int, int],
    keep: int,
    now: datetime,
    end: Mapping[int, int] = NO_ENDS,
) -> list[Verdict]:
    """What becomes of each snapshot. ``low``: partition → earliest offset that the topic retains. ``keep``: at least 1.

    ``end``: partition → where the topic ends.

    What can't be read stays, whatever it is: a newer Freshet may have written it, or somebody can mend it.
    """
    verdicts: dict[str, Verdict] = {}
    histories: dict[tuple[str, int], list[tuple[Found, Snapshot]]] = {}
    for each in found:
        if each.snapshot is not None:
            histories.setdefault((each.snapshot.topic_id, each.snapshot.fold_version), []).append((each, each.snapshot))
        elif each.error is not None and each.error.code == "snapshot_incomplete":
            old = _begun(each.name) < now - timedelta(seconds=UNFINISHED_S)
            verdicts[each.name] = Verdict(each, not old, "was not finished" if old else "may be being written")
        else:
            verdicts[each.name] = Verdict(each, stays=True, why=f"can't be read: {each.error}")
    for (of_topic, _), held in histories.items():
        held.sort(
            key=lambda pair: (not _is_ahead(pair[1], end), sum(pair[1].offsets.values()), pair[1].name), reverse=True
        )
        if of_topic != topic_id and not any(topic == topic_id for topic, _ in histories):
            # Before the topic has one, nothing is known to replace them: it may be a topic of another Kafka.
            why = f"is of topic id {of_topic}, and there is none of {topic_id}"
            verdicts |= {each.name: Verdict(each, stays=True, why=why) for each, _ in held}
        elif of_topic != topic_id:
            verdicts |= {each.name: Verdict(each, stays=False, why=f"is of topic id {of_topic}") for each, _ in held}
        else:
            verdicts |= _of_history(held, low, keep, end)
    return [verdicts[each.name] for each in found]


def _is_ahead(snapshot: Snapshot, end: Mapping[int, int]) -> bool:
    return any(offset > end.get(number, offset) for number, offset in snapshot.offsets.items())


def _of_history(
    held: list[tuple[Found, Snapshot]], low: Mapping[int, int], keep: int, end: Mapping[int, int]
) -> dict[str, Verdict]:
    """``held``: of one history, the newest first."""
    verdicts: dict[str, Verdict] = {}
    has_verified = has_replayed = False
    for place, (found, snapshot) in enumerate(held):
        if place < keep:
            why = f"is one of the {keep} newest" if keep > 1 else "is the newest"
        elif snapshot.verified and not has_verified:
            why = "is the newest verified one"
        elif snapshot.replayed and not has_replayed:
            why = "is the newest folded from the topic's beginning"
        else:
            expired = any(offset < low.get(number, 0) for number, offset in snapshot.offsets.items())
            expired = expired or _is_ahead(snapshot, end)
            why = "the topic can't continue it" if expired else "newer ones are there"
            verdicts[found.name] = Verdict(found, stays=False, why=why)
            continue
        has_verified |= snapshot.verified
        has_replayed |= snapshot.replayed
        verdicts[found.name] = Verdict(found, stays=True, why=why)
    return verdicts


def _begun(name: str) -> datetime:
    """When a snapshot of this name was begun; never if the name is none of ours."""
    try:
        return datetime.strptime(name.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)


def remove_snapshot(place: Place, found: Found) -> None:
    """Removes a snapshot, its manifest first: what is left of it, if this is killed, does not count as one."""
    place.remove(found.path_of(MANIFEST_NAME))
    place.remove_tree(found.directory)
