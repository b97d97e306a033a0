"""A look at every owner each `LOOK_S`, and what was seen in the last day. Bounded memory, whatever happens."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from operator import sub
from typing import Final, NamedTuple, TypeVar

import structlog

from consumers.owner.protocol import PartitionStatus, Statuses
from serving.http.status.answers import (
    KeyspaceHistory,
    PartitionHistory,
    PartitionState,
    ShardState,
    StatusEvent,
    StatusHistory,
)
from serving.http.status.rings import LOOK_S, STEP_S, UNKNOWN, Hours, Moment, Rings, Worst, together
from serving.http.status.timeline import AWAY, changes
from serving.metrics import FrontMetrics
from serving.reads.owners import OwnerAway, Owners
from serving.reads.spaces import RowSpace, TableSpace

FRESH_S: Final = 1.0
"""A look that is younger serves further requests: many readers cost the owners no more than one."""
EVENTS_MAX: Final = 500
"""Changes that are remembered; they are kept longer than a day if there are few."""
PARTITIONS_MAX: Final = 1_000
"""Partitions whose ages are remembered one by one. Those beyond it count for the worst of their keyspace only."""
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


class _Counted(NamedTuple):
    """Totals since the front began, at the moment before."""

    answers: tuple[int, int, int]
    misses: Counter[str]


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
        every = ((name, number) for name, space in spaces.items() for number in range(space.layout.partitions))
        self._remembered = list(islice(every, PARTITIONS_MAX))
        self._rings, self._counted = Rings(), _Counted((0, 0, 0), Counter())
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
            await asyncio.sleep(LOOK_S)

    async def look(self) -> Look:
        """What is to be seen now, or was less than `FRESH_S` ago."""
        async with self._looking:
            now = self._clock()
            if self._last is None or not 0 <= now - self._last.at < FRESH_S:
                found = await asyncio.gather(*(self._partitions_of(space) for space in self._spaces.values()))
                partitions = sorted((each for some in found for each in some), key=_badness, reverse=True)
                for name, some in zip(self._spaces, found, strict=True):
                    self._metrics.away.labels(name).set(sum(each.state == AWAY for each in some))
                if self._last is not None:
                    self._events += changes(self._last.partitions, partitions, now)
                self._last = Look(now, tuple(partitions), *self._metrics.totals(), self._metrics.misses())
            return self._last

    def remember(self, look: Look) -> None:
        """Keeps what the history tells of ``look``."""
        ages = {(each.keyspace, each.partition): _or_unknown(each.age_s) for each in look.partitions}
        worst = {name: _worst([each for each in look.partitions if each.keyspace == name]) for name in self._spaces}
        counted = _Counted((look.cache, look.source, look.refused), Counter(look.misses))
        cache, source, refused = map(sub, counted.answers, self._counted.answers)
        misses = counted.misses - self._counted.misses
        self._counted = counted
        of_each = array("d", (ages[each] for each in self._remembered))
        unknown = array("I", (each == UNKNOWN for each in of_each))
        self._rings.add(Moment(look.at, of_each, unknown, worst, (cache, source, refused), misses))

    def history(self, keyspaces: list[str], hours: Hours = 1, partitions: int = 0) -> StatusHistory:
        """The last ``hours`` of these keyspaces, and of as many ``partitions`` of each.

        Answers are counted for the whole front: told where all keyspaces are.
        """
        moments = self._rings.last(hours, self._clock())
        oldest = self._oldest(moments, partitions)
        counted = moments if self._spaces.keys() <= set(keyspaces) else []
        return StatusHistory(
            [each.at for each in moments],
            [each.counts[0] for each in counted],
            [each.counts[1] for each in counted],
            [each.counts[2] for each in counted],
            [self._of_keyspace(name, moments, oldest.get(name, [])) for name in keyspaces],
            {
                reason: [each.misses.get(reason, 0) for each in counted]
                for reason in sorted({reason for each in counted for reason in each.misses})
            },
            [each for each in self._events if each.keyspace in keyspaces],
            hours,
            STEP_S[hours],
        )

    def _of_keyspace(self, name: str, moments: list[Moment], oldest: list[tuple[int, int]]) -> KeyspaceHistory:
        worst = [each.worst[name] for each in moments]
        return KeyspaceHistory(
            name,
            [_unless_unknown(each.age_s) for each in worst],
            [_unless_unknown(each.behind) for each in worst],
            [each.unknown for each in worst],
            [
                PartitionHistory(
                    partition,
                    [_unless_unknown(each.ages_s[index]) for each in moments],
                    [each.unknown[index] for each in moments],
                )
                for index, partition in oldest
            ],
        )

    def _oldest(self, moments: list[Moment], number: int) -> dict[str, list[tuple[int, int]]]:
        """Keyspace → (place among the remembered, partition) of the oldest; none of a source that tells no clock.

        Who was unknown for a time was at least as old as that at its end.
        """
        if not moments or not number:
            return {}
        all_of_it = together(moments)
        found: dict[str, list[tuple[float, int, int]]] = {}
        clocks = set()
        for index, (keyspace, partition) in enumerate(self._remembered):
            age_s = all_of_it.ages_s[index]
            if age_s != UNKNOWN:
                clocks.add(keyspace)
            worst = max(age_s, all_of_it.unknown[index] * LOOK_S)
            found.setdefault(keyspace, []).append((worst, -index, partition))
        return {
            keyspace: [(-place, partition) for _, place, partition in nlargest(number, found[keyspace])]
            for keyspace in clocks
        }

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


def _worst(states: list[PartitionState]) -> Worst:
    age_s = _largest([each.age_s for each in states])
    return Worst(_or_unknown(age_s), _or_unknown(_largest([each.behind for each in states])), int(age_s is None))


def _largest(values: Sequence[Number | None]) -> Number | None:
    """None if one is unknown, or there is none."""
    known = [each for each in values if each is not None]
    return max(known) if known and len(known) == len(values) else None


def _or_unknown(value: Number | None) -> Number | int:
    return UNKNOWN if value is None else value


def _unless_unknown(value: Number) -> Number | None:
    return None if value == UNKNOWN else value
