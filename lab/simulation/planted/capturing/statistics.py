"""Planted bugs in column statistics: when they are read again, what they are of, and for whom they hold."""

from __future__ import annotations

from typing import Final

from consumers.owner.objects import statistics
from lab.simulation.planted.planting import Replace, warehouse
from stream.sources.hive.live import members
from stream.sources.hive.object_events import ObjectEvents

BUGS: Final = (
    warehouse(
        "statistics_outlive_their_event",
        "statistics of a table are not read again when they are made anew or deleted",
        Replace(
            ObjectEvents.of_write,
            "if kind in ('UPDATE_TBL_COL_STAT_EVENT', 'DELETE_TBL_COL_STAT_EVENT'):\n"
            "    return [ObjectImage(STATISTICS, at, (), 'written')]",
            "if kind in ('UPDATE_TBL_COL_STAT_EVENT', 'DELETE_TBL_COL_STAT_EVENT'):\n    return []",
        ),
    ),
    warehouse(
        "lack_of_statistics_is_not_told",
        "of a partition that was read again only statistics that there are are published",
        Replace(
            members.read_named,
            "members += [_member(PARTITION_STATISTICS, each, statistics.get(each)) for each in asked]",
            "members += [_member(PARTITION_STATISTICS, *each) for each in statistics.items()]",
        ),
    ),
    warehouse(
        "statistics_hold_for_everyone",
        "statistics are said to hold for a reader who must not see the last write of what they are of",
        Replace(statistics.is_stats_compliant, "listed.is_valid(written)", "True"),
    ),
)
