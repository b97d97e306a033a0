"""Verify: compares two sets of stores partition by partition, at equal offsets, byte for byte.

It reads only store directories, so it works offline. `freshet verify` gives it the owners' checkpoints and a rebuild.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from consumers.owner.client import Identity, OwnerConnection
from consumers.owner.protocol import CheckpointPlace, OwnerError
from consumers.store.store import StoreView
from spark_jobs.auditing.compare import DIFFERENCES_MAX, StateComparison, compare_items
from tokens.errors import FreshetError

BUSY_S: Final = 10.0
"""For how long an owner may put a checkpoint off."""


class VerifyError(FreshetError):
    """Two states can't be compared. Codes: ``partitions_differ``, ``offsets_differ``, ``begins_differ``,
    ``topics_differ``, ``checkpoint_missing``.
    """

    code = "not_comparable"


@dataclass(frozen=True, slots=True)
class PartitionVerdict:
    """The result for one partition. Both sides are at ``offset``; ``digest`` is the left side's.

    ``first``: the first differing keys with both values, decoded.
    """

    partition: int
    equal: bool
    offset: int
    items: int
    right_items: int
    only_left: int
    only_right: int
    changed: int
    digest: str
    right_digest: str
    first: tuple[dict[str, object], ...]
    ranges: int = 0
    """Ranges of keys that were compared,"""
    unequal_ranges: int = 0
    """and those of them in which a key differs."""


@dataclass(frozen=True, slots=True)
class StoresVerdict:
    """The result of a comparison. ``left`` and ``right`` are the names of the sides."""

    left: str
    right: str
    keyspace: str
    partitions: tuple[PartitionVerdict, ...]

    @property
    def equal(self) -> bool:
        """Whether every partition is equal."""
        return all(partition.equal for partition in self.partitions)

    @property
    def items(self) -> int:
        """Items on the left, heads included: the keys that were compared."""
        return sum(partition.items for partition in self.partitions)

    @property
    def differences(self) -> int:
        """Keys that differ."""
        return sum(each.changed + each.only_left + each.only_right for each in self.partitions)

    def as_json(self) -> dict[str, Any]:
        """The verdict as JSON values."""
        return {"equal": self.equal, "items": self.items, "differences": self.differences, **asdict(self)}


def verify_stores(
    left: Mapping[int, Path],
    right: Mapping[int, Path],
    *,
    names: tuple[str, str] = ("left", "right"),
    keep: int = DIFFERENCES_MAX,
    progress: Callable[[int, int], None] | None = None,
) -> StoresVerdict:
    """Compares store directories by partition. ``progress`` gets the number of partitions compared and in total.

    Raises `VerifyError` if the sides can't be compared, `consumers.store.errors.StoreError` if one can't be read.
    """
    if left.keys() != right.keys():
        raise VerifyError(
            f"{names[0]} has the partitions {sorted(left)}, {names[1]} has {sorted(right)}",
            hint="compare whole data sets, or one store with one store",
            code="partitions_differ",
        )
    verdicts: list[PartitionVerdict] = []
    keyspace = ""
    for partition in sorted(left):
        with StoreView(left[partition]) as one, StoreView(right[partition]) as other:
            keyspace = one.manifest.keyspace
            _check_comparable(partition, one, other, names)
            comparison = compare_items(one.items(), other.items(), keep=keep)
            verdicts.append(_verdict(partition, one, comparison))
        if progress is not None:
            progress(len(verdicts), len(left))
    return StoresVerdict(*names, keyspace, tuple(verdicts))


def _verdict(partition: int, one: StoreView, comparison: StateComparison) -> PartitionVerdict:
    return PartitionVerdict(
        partition=partition,
        equal=comparison.equal,
        offset=one.head.offset,
        items=comparison.left_items,
        right_items=comparison.right_items,
        only_left=comparison.only_left,
        only_right=comparison.only_right,
        changed=comparison.changed,
        digest=comparison.left_digest,
        right_digest=comparison.right_digest,
        first=tuple(difference.as_json() for difference in comparison.first),
        ranges=comparison.ranges,
        unequal_ranges=comparison.unequal_ranges,
    )


def _check_comparable(partition: int, one: StoreView, other: StoreView, names: tuple[str, str]) -> None:
    of_one, of_other = one.manifest, other.manifest
    if (of_one.keyspace, of_one.topic_id) != (of_other.keyspace, of_other.topic_id):
        raise VerifyError(
            f"partition {partition}: {names[0]} is of {of_one.keyspace} (topic id {of_one.topic_id}), "
            f"{names[1]} of {of_other.keyspace} (topic id {of_other.topic_id})",
            hint="compare stores of the same topic",
            code="topics_differ",
        )
    if one.head.begin != other.head.begin:
        raise VerifyError(
            f"partition {partition}: {names[0]} began at offset {one.head.begin}, {names[1]} at {other.head.begin}",
            hint="a state is a function of where it began and the log: rebuild with --to-checkpoint",
            code="begins_differ",
        )
    if one.head.offset != other.head.offset:
        raise VerifyError(
            f"partition {partition}: {names[0]} is at offset {one.head.offset}, {names[1]} at {other.head.offset}",
            hint="rebuild to the same offsets: `freshet rebuild --to-checkpoint DIR`",
            code="offsets_differ",
        )


def checkpoint_owners(owners: Mapping[int, str], keyspace: str, *, identity: Identity | None = None) -> dict[int, Path]:
    """Makes each partition's owner (host:port; "": it has none) checkpoint it; partition → directory.

    Raises `consumers.owner.protocol.OwnerError`, or `VerifyError` ``checkpoint_missing`` if a partition has no owner or
    its checkpoint can't be read by this process.
    """
    asked = sorted({address for address in owners.values() if address})
    for partition, address in owners.items():
        if not address:
            raise VerifyError(
                f"{keyspace}/{partition} has no owner (asked: {', '.join(asked) or 'nobody'})",
                hint="start `freshet consume`, or give its address with --owner",
                code="checkpoint_missing",
            )
    found: dict[int, Path] = {}
    for address in asked:
        with OwnerConnection(address, identity=identity) as owner:
            for partition in sorted(number for number, each in owners.items() if each == address):
                [place] = _checkpoint(owner, keyspace, partition)
                found[partition] = Path(place.directory)
    for partition, directory in found.items():
        if not directory.is_dir():
            raise VerifyError(
                f"the checkpoint of {keyspace}/{partition} was written to {directory}, which does not exist here",
                hint="run verify where the owners' data directories can be read",
                code="checkpoint_missing",
            )
    return found


def _checkpoint(owner: OwnerConnection, keyspace: str, partition: int) -> list[CheckpointPlace]:
    """Asks again for a while: dead letters that an owner has just met must be in their topic before a commit."""
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return owner.checkpoint(keyspace, partition)
        except OwnerError as error:
            if error.code != "too_busy" or time.monotonic() >= deadline:
                raise
        time.sleep(0.2)


if __name__ == "__main__":
    from spark_jobs.submitted import main

    main("verify")
