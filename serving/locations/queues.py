"""The queues of refreshes: six priorities, batches of one keyspace and kind, and one refresh of a key at a time. Pure.

A key is queued, then under way, then rests for `REST_S`. Whoever wants it while it is queued shares that refresh. Who
wants something newer than the start of the one that is under way gets exactly one more, after the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from .errors import LocationError
from .places import Key, Kind, Priority

BATCH_MAX: Final = 128
SYSTEM_MAX: Final = 10_000
USER_MAX: Final = 1_000_000
"""Keys that wait, of the system's and of the partitions."""
REST_S: Final = 0.1
"""Between two refreshes of one key."""
WAITS_LONG_S: Final = 3.0
"""After that a key counts as starved: each `TURNS`th batch is of such keys, whatever their priority."""
TURNS: Final = 8


@dataclass(slots=True)
class _Waiting:
    priority: Priority
    since: float
    topic_only: bool


@dataclass(slots=True)
class _UnderWay:
    began_at: float
    again: Priority | None = None
    again_by_topic: bool = False


class Batch(NamedTuple):
    """Keys of one keyspace and kind to be refreshed together. ``began_at``: what is found is as of then, or newer.

    ``topic_only``: keys that shall be read in the topic, whatever peers would say. ``waited_s``: the longest wait.
    """

    keyspace: str
    kind: Kind
    keys: tuple[Key, ...]
    topic_only: frozenset[Key]
    began_at: float
    waited_s: float


class Queues:
    """Which keys to refresh next."""

    def __init__(self) -> None:
        self._waiting: dict[Key, _Waiting] = {}
        self._groups: dict[Priority, dict[tuple[str, Kind], dict[Key, None]]] = {each: {} for each in Priority}
        self._under_way: dict[Key, _UnderWay] = {}
        self._resting: dict[Key, tuple[float, _UnderWay]] = {}
        """Until when, in the order in which that comes."""
        self._turn = 0
        self._system = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def depths(self) -> dict[str, int]:
        """How many keys wait, by priority."""
        return {p.name.lower(): sum(map(len, groups.values())) for p, groups in self._groups.items()}

    def put(
        self, key: Key, priority: Priority, now: float, *, newer_than: float = float("-inf"), topic_only: bool = False
    ) -> bool:
        """Has a key refreshed; False if a refresh that is on its way does it.

        ``newer_than``: one that began by then is not enough. Raises `LocationError` ``location_queue_full``.
        """
        self._ripen(now)
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.topic_only |= topic_only
            if priority < waiting.priority:
                self._take_out(key, waiting.priority)
                waiting.priority = priority
                self._groups[priority].setdefault(key.group, {})[key] = None
            return False
        if (resting := self._resting.get(key)) is not None:
            return self._again(resting[1], priority, float("inf"), topic_only)  # it has ended
        if (under_way := self._under_way.get(key)) is not None:
            return self._again(under_way, priority, newer_than, topic_only)
        if self._is_full(key):
            raise LocationError("location_queue_full", f"{len(self._waiting)} locations wait to be refreshed")
        self._wait(key, priority, now, topic_only)
        return True

    def _wait(self, key: Key, priority: Priority, now: float, topic_only: bool) -> None:
        self._waiting[key] = _Waiting(priority, now, topic_only)
        self._system += key.is_system
        self._groups[priority].setdefault(key.group, {})[key] = None

    def _is_full(self, key: Key) -> bool:
        return self._system >= SYSTEM_MAX if key.is_system else len(self._waiting) - self._system >= USER_MAX

    @staticmethod
    def _again(under_way: _UnderWay, priority: Priority, newer_than: float, topic_only: bool) -> bool:
        if under_way.began_at > newer_than and not topic_only:
            return False
        is_new = under_way.again is None
        under_way.again = priority if under_way.again is None else min(priority, under_way.again)
        under_way.again_by_topic |= topic_only
        return is_new

    def _take_out(self, key: Key, priority: Priority) -> None:
        groups = self._groups[priority]
        of_group = groups[key.group]
        del of_group[key]
        if not of_group:
            del groups[key.group]

    def _ripen(self, now: float) -> None:
        """Ends the rest of those whose time has come. Who is to be refreshed again was let in: it finds room."""
        while self._resting:
            key = next(iter(self._resting))
            until, rested = self._resting[key]
            if until > now:
                return
            del self._resting[key]
            if rested.again is not None:
                self._wait(key, rested.again, now, rested.again_by_topic)

    def take(self, now: float, may: Callable[[str], bool]) -> Batch | None:
        """The next batch. ``may``: whether a keyspace may be read now; it is asked once for each that could be next."""
        self._ripen(now)
        self._turn += 1
        asked: dict[str, bool] = {}
        for priority, group in self._order(now):
            if group[0] not in asked:
                asked[group[0]] = may(group[0])
            if asked[group[0]]:
                return self._batch(priority, group, now)
        return None

    def _order(self, now: float) -> Iterator[tuple[Priority, tuple[str, Kind]]]:
        """Groups in the order in which they are next: by priority, but now and then one that has waited for long."""
        if self._turn % TURNS == 0:
            for priority in reversed(Priority):
                for group, keys in self._groups[priority].items():
                    if now - self._waiting[next(iter(keys))].since > WAITS_LONG_S:
                        yield priority, group
        for priority in Priority:
            for group in self._groups[priority]:
                yield priority, group

    def _batch(self, priority: Priority, group: tuple[str, Kind], now: float) -> Batch:
        waiting = self._groups[priority].pop(group)
        keys = tuple(key for key, _ in zip(waiting, range(BATCH_MAX), strict=False))
        for key in keys:
            del waiting[key]
        if waiting:
            self._groups[priority][group] = waiting  # behind the other groups
        taken = {key: self._waiting.pop(key) for key in keys}
        self._system -= sum(key.is_system for key in keys)
        for key in keys:
            self._under_way[key] = _UnderWay(now)
        by_topic = frozenset(key for key, each in taken.items() if each.topic_only)
        return Batch(*group, keys, by_topic, now, now - min(each.since for each in taken.values()))

    def done(self, keys: Sequence[Key], now: float) -> None:
        """The refresh of keys has ended, well or not."""
        for key in keys:
            under_way = self._under_way.pop(key, None)
            if under_way is not None:
                self._resting[key] = now + REST_S, under_way

    def next_at(self) -> float | None:
        """When a rest ends after which there is something to do; None: nothing will be due by itself."""
        return next((until for until, rested in self._resting.values() if rested.again is not None), None)

    def drop(self, is_meant: Callable[[Key], bool]) -> None:
        """Refreshes no key that is meant; a refresh that is under way ends, and is not repeated."""
        for key in [each for each in self._waiting if is_meant(each)]:
            self._take_out(key, self._waiting.pop(key).priority)
            self._system -= key.is_system
        for key, under_way in self._under_way.items():
            if is_meant(key):
                under_way.again = None
        for key in [each for each in self._resting if is_meant(each)]:
            del self._resting[key]
