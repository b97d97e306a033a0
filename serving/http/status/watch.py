"""A look at every owner each `STEP_S`, and what was seen in the last hour. Bounded memory, whatever happens."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import structlog

from consumers.owner.protocol import PartitionStatus, Statuses
from serving.http.status.answers import KeyspaceHistory, PartitionState, ShardState, StatusEvent, StatusHistory
from serving.http.status.timeline import AWAY, changes
from serving.metrics import FrontMetrics
from serving.reads.owners import OwnerAway, Owners
from serving.reads.spaces import RowSpace, TableSpace

STEP_S: Final = 10.0
"""Between two looks that are remembered."""
KEPT_S: Final = 3_600
FRESH_S: Final = 1.0
"""A look that is younger serves further requests: many readers cost the owners no more than one."""
EVENTS_MAX: Final = 500
"""Changes that are remembered; they are kept longer than `KEPT_S` if there are few."""
Number = TypeVar("Number", int, float)

_log = structlog.get_logger(__name__)


class Look(NamedTuple):
    """What was seen at a moment. Counts are totals since the front began."""

    at: float
    partitions: tuple[PartitionState, ...]
    cache: int
    source: int
    refused: int
    misses: Mapping[str, int]


class _Worst(NamedTuple):
    age_s: float | None
    behind: int | None


class _Moment(NamedTuple):
    """Of a look, what is remembered: a few numbers for each keyspace."""

    at: float
    worst: Mapping[str, _Worst]
    cache: int
    source: int
    refused: int
    misses: Mapping[str, int]


class Watch:
    """Looks at the owners of all ``spaces``. Belongs to one event loop. ``clock``: Unix time in seconds."""

    def __init__(
        self,
        owners: Owners,
        spaces: Mapping[str, RowSpace | TableSpace],
        metrics: FrontMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._owners, self._spaces, self._metrics, self._clock = owners, spaces, metrics, clock
        self._moments: deque[_Moment] = deque(maxlen=int(KEPT_S / STEP_S) + 1)
        self._events: deque[StatusEvent] = deque(maxlen=EVENTS_MAX)
        self._last: Look | None = None
        self._looking = asyncio.Lock()

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            try:
                self.remember(await self.look())
            except Exception:  # noqa: BLE001 - whoever is asked may answer anything, and the next look may be better
                _log.exception("the owners could not be looked at")
            await asyncio.sleep(STEP_S)

    async def look(self) -> Look:
        """What is to be seen now, or was less than `FRESH_S` ago."""
        async with self._looking:
            now = self._clock()
            if self._last is None or not 0 <= now - self._last.at < FRESH_S:
                found = await asyncio.gather(*(self._partitions_of(space) for space in self._spaces.values()))
                partitions = sorted((each for some in found for each in some), key=_badness, reverse=True)
                if self._last is not None:
                    self._events += changes(self._last.partitions, partitions, now)
                self._last = Look(now, tuple(partitions), *self._metrics.totals(), self._metrics.misses())
            return self._last

    def remember(self, look: Look) -> None:
        """Keeps what the history tells of ``look``."""
        worst = {name: _worst([each for each in look.partitions if each.keyspace == name]) for name in self._spaces}
        self._moments.append(_Moment(look.at, worst, look.cache, look.source, look.refused, look.misses))

    def history(self, keyspaces: list[str]) -> StatusHistory:
        """The last hour of these keyspaces. Answers are counted for the whole front: told where all keyspaces are."""
        moments = [each for each in self._moments if each.at > self._clock() - KEPT_S]
        before = [moments[0], *moments[:-1]] if moments else []
        steps = list(zip(before, moments, strict=True)) if self._spaces.keys() <= set(keyspaces) else []
        unknown = _Worst(None, None)
        of_keyspace = {name: [each.worst.get(name, unknown) for each in moments] for name in keyspaces}
        reasons = sorted({name for each in moments for name in each.misses}) if steps else []
        return StatusHistory(
            [each.at for each in moments],
            [now.cache - then.cache for then, now in steps],
            [now.source - then.source for then, now in steps],
            [now.refused - then.refused for then, now in steps],
            [
                KeyspaceHistory(name, [each.age_s for each in worst], [each.behind for each in worst])
                for name, worst in of_keyspace.items()
            ],
            {name: [now.misses.get(name, 0) - then.misses.get(name, 0) for then, now in steps] for name in reasons},
            [each for each in self._events if each.keyspace in keyspaces],
        )

    async def _partitions_of(self, space: RowSpace | TableSpace) -> list[PartitionState]:
        by_address: dict[str, list[int]] = {}
        for partition in range(space.layout.partitions):
            address = self._owners.address_of(space.name, partition) or ""
            by_address.setdefault(address, []).append(partition)
        nobody = by_address.pop("", [])
        asked = [self._at_one_owner(space.name, address, partitions) for address, partitions in by_address.items()]
        found = [PartitionState(space.name, partition, "", AWAY) for partition in nobody]
        for some in await asyncio.gather(*asked):
            found += some
        return found

    async def _at_one_owner(self, keyspace: str, address: str, partitions: list[int]) -> list[PartitionState]:
        try:
            told = await self._owners.ask(keyspace, partitions[0], lambda client: client.status(keyspace))
        except OwnerAway:
            told = Statuses(0, False, "", [])
        known = {each.partition: each for each in told.partitions if each.keyspace == keyspace}
        return [
            _state(known[partition], address, self._clock())
            if partition in known
            else PartitionState(keyspace, partition, address, AWAY)
            for partition in partitions
        ]


def _state(told: PartitionStatus, address: str, now: float) -> PartitionState:
    shards = [
        ShardState(
            each.shard, each.epoch, each.watermark, max(0.0, now - each.as_of_ms / 1000) if each.as_of_ms else None
        )
        for each in told.shards
    ]
    return PartitionState(
        told.keyspace,
        told.partition,
        address,
        "ready" if told.ready else told.state,
        _largest([each.age_s for each in shards]),
        told.silent_seconds if told.silent_seconds >= 0 else None,
        max(0, told.end - told.position) if told.end >= 0 else None,
        told.entries,
        told.overlay_entries,
        shards,
        told.tables,
        told.verdict.at_ms / 1000 if told.verdict is not None else None,
        told.verdict.equal if told.verdict is not None else None,
    )


def _badness(state: PartitionState) -> tuple[bool, float, int]:
    """Larger is worse: away, then of unknown age, then old, then behind."""
    age = state.judged_age_s
    return state.state == AWAY, float("inf") if age is None else age, state.behind or 0


def _worst(states: list[PartitionState]) -> _Worst:
    return _Worst(_largest([each.age_s for each in states]), _largest([each.behind for each in states]))


def _largest(values: Sequence[Number | None]) -> Number | None:
    """None if one is unknown, or there is none."""
    known = [each for each in values if each is not None]
    return max(known) if known and len(known) == len(values) else None
