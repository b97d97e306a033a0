"""The fold of markers: watermarks, low-water, the end of voids, and the chain that shows a lost tail. Pure."""

from __future__ import annotations

from typing import Any

from consumers.fold.shards import arrival_rejections, arrival_voids, lineage_for, older_epoch_rejection
from consumers.fold.state import Changes, Head, Lineage, Rejection, Void
from stream.wire.events import EVERY_TABLE
from stream.wire.records import follows_a_gap
from tokens import Position


def fold_marker(head: Head, after: int, marker: dict[str, Any]) -> Changes:
    """What a marker changes. Raises ``ValueError``."""
    shard, epoch, ordinal, position = marker["shard"], marker["epoch"], marker["ordinal"], marker["position"]
    Position.parse(position)
    Position.parse(marker["low_water"])
    if head.layout and marker["layout"] != head.layout:
        reason = f"layout {marker['layout']} differs from the topic's {head.layout}"
        return Changes(after, {}, rejections=(Rejection("layout_changed", reason, f"shard {shard}"),))
    lineage = lineage_for(head, shard, epoch)
    if lineage is None:
        return Changes(after, {}, rejections=(older_epoch_rejection(marker),))
    voids, rejections = arrival_voids(head, shard, epoch), arrival_rejections(head, shard)
    if follows_a_gap(lineage.continuity, marker):
        # What was lost may have been replaced under the same numbers, so all of them are in doubt.
        voids[EVERY_TABLE, shard] = Void(epoch, max(lineage.ordinal, ordinal), "")
        reason = f"the marker follows another one than the last folded of {shard}: Kafka lost or replaced records"
        rejections = (*rejections, Rejection("log_gap", reason, f"shard {shard}"))
    if ordinal < lineage.watermark_ordinal:
        # One that is passed over and links nothing must not end the chain: what comes next could not be checked.
        moved = lineage._replace(continuity=marker["continuity"] or lineage.continuity)
        return Changes(after, {}, {shard: moved} if moved != lineage else {}, voids, rejections=rejections)
    if marker["whole"]:
        _end_voids(head, voids, marker)
    moved = Lineage(
        epoch,
        max(lineage.ordinal, ordinal),
        ordinal,
        position,
        marker["timestamp"],
        _low_water(head, lineage, marker),
        marker["continuity"],
        marker["as_of_ms"],
    )
    return Changes(after, {}, {shard: moved}, voids, marker["layout"], rejections)


def _end_voids(head: Head, voids: dict[tuple[str, str], Void], marker: dict[str, Any]) -> None:
    """Gives the marker's position to the voids that wait for it. A marker from before a void does not end its wait."""
    shard, epoch, ordinal = marker["shard"], marker["epoch"], marker["ordinal"]
    for scope in (*head.waiting, *voids):
        void = voids.get(scope) or head.voids[scope]
        if scope[1] == shard and void.epoch == epoch and not void.floor and void.ordinal <= ordinal:
            voids[scope] = void._replace(floor=marker["position"])


def _low_water(head: Head, lineage: Lineage, marker: dict[str, Any]) -> str:
    """The lineage's low-water after the marker. It only rises.

    A state that began in the middle knows nothing of what was before; the first marker at a transaction's end says how
    far that can reach.
    """
    known, told = lineage.low_water, str(marker["low_water"])
    if not known and head.begin:
        return str(marker["position"]) if marker["whole"] else ""
    if not known or known == told:
        return told
    return str(Position.parse(known).join(Position.parse(told)))
