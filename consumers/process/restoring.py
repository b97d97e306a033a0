"""Makes stores from snapshots in the background, so that the fold of other partitions goes on meanwhile.

A partition whose store is being made is assigned to this process, but not read and not owned: nobody is told to ask for
it here. When the store is there, or none can be made, the partition is taken over as any other. So it is once its place
has said nothing for `SILENT_S`: then it is folded from the topic. A place that fails is asked again for so long, where
the topic's beginning is gone: what only a snapshot has would be unknown for good. A partition whose store could not be
opened waits in the same way, for what may pass: a full disk, or a partition of Kafka that has no leader.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Final

import structlog

from consumers.snapshots.errors import PlaceAwayError, SnapshotError
from consumers.snapshots.patience import SILENT_S, Patience
from consumers.snapshots.places import shown
from consumers.snapshots.restoring import Snapshots, log_refusal
from consumers.store.errors import StoreError
from stream.kafka.topics import Topic
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

END_S: Final = 5.0
RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 8.0
"""Longest pause between two attempts at a partition; the first one is `RETRY_S`."""
Place = tuple[str, int]
"""Keyspace and partition."""
Given = tuple[str, int]
"""Topic and partition, as the group has assigned them."""


class StillRestoring(Exception):
    """A store is being made from a snapshot. ``why``: the error because of which it is new, None if it was missing."""

    why: StoreError | None = None


@dataclass(slots=True)
class _Turn:
    """One restore of a place at a time; ``heard``: what that one hears."""

    lock: Lock = field(default_factory=Lock)
    heard: Patience = field(default_factory=Patience)


@dataclass(frozen=True, slots=True)
class _Restore:
    topic_id: str
    result: Future[bool]
    patience: Patience
    turn: _Turn
    began_s: float

    def outcome(self) -> bool:
        """Whether there is a store. Raises what has prevented it."""
        return not self.patience.is_over and self.result.result()


class BackgroundRestores:
    """As `Snapshots`, but `restore` does not wait. Fold thread only."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._started: dict[Place, _Restore] = {}
        self._turns = {uri: _Turn() for uri in snapshots.places.values()}
        self._away: dict[str, tuple[float, float]] = {}
        """Address of a place that fails → since when, and when that was last seen."""

    @property
    def places(self) -> Mapping[str, str]:
        """As `Snapshots.places`."""
        return self._snapshots.places

    def is_running(self, place: Place) -> bool:
        """Whether the partition's store is being made; nobody else may touch its directory then.

        It is given up here if its place has fallen silent, also while it waits for its turn there.
        """
        found = self._started.get(place)
        if found is None or found.patience.is_over or found.result.done():
            return False
        silent_s = found.turn.heard.silent_s()
        if silent_s < SILENT_S or not found.patience.give_up():
            return True
        uri = self.places[place[0]]
        if self._turns[uri] is found.turn:  # who comes later asks the place itself, not behind one that hangs
            self._turns[uri] = _Turn()
        where = shown(uri)
        what = f"{where} has said nothing for {silent_s:.0f} s: folding from the topic"
        log_refusal(*place, SnapshotError(what, hint="look whether the place can be reached from here"))
        return False

    def restore(self, data_dir: Path, keyspace: str, partition: int, topic: Topic, bounds: tuple[int, int]) -> bool:
        """As `Snapshots.restore` once it is done. Raises `StillRestoring` before that, and `StoreError`."""
        if keyspace not in self.places:
            return False
        place = (keyspace, partition)
        if self.is_running(place):
            raise StillRestoring
        found = self._started.pop(place, None)
        if found is not None and found.topic_id == topic.topic_id:
            return self._outcome(keyspace, partition, found)
        result: Future[bool] = Future()
        patience = Patience()
        turn = self._turns[self.places[keyspace]]
        self._started[place] = _Restore(topic.topic_id, result, patience, turn, time.monotonic())
        work = functools.partial(self._snapshots.restore, data_dir, keyspace, partition, topic, bounds, patience)
        # A daemon: a place that does not answer must not keep the process from ending.
        arguments = (turn, patience, result, work)
        Thread(target=self._run, args=arguments, name=f"restore-{partition}", daemon=True).start()
        raise StillRestoring

    def _outcome(self, keyspace: str, partition: int, found: _Restore) -> bool:
        """Whether there is a store. Raises what has prevented it, a place that fails for `SILENT_S` at most."""
        uri, now = self.places[keyspace], time.monotonic()
        try:
            made = found.outcome()
        except PlaceAwayError as error:
            since, last = self._away.get(uri, (now, now))
            since = since if found.began_s - last < SILENT_S else now  # else nobody has asked it in between
            self._away[uri] = since, now
            if now - since < SILENT_S:
                raise
            what = f"{shown(uri)} has failed for {now - since:.0f} s: folding from the topic"
            log_refusal(keyspace, partition, SnapshotError(what, hint=error.hint))
            return False
        self._away.pop(uri, None)
        return made

    def _run(self, turn: _Turn, patience: Patience, result: Future[bool], work: Callable[[], bool]) -> None:
        with turn.lock:  # one partition of a place at a time: its files are copied side by side. Another may not answer
            turn.heard = patience
            try:
                result.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is raised where the partition is taken over
                result.set_exception(error)
            finally:
                turn.heard = Patience()

    def forget(self, place: Place) -> None:
        """The partition has been opened: what was made for it before says nothing of a store that is missing later."""
        if not self.is_running(place):
            self._started.pop(place, None)

    def close(self) -> None:
        """Ends what runs, before the next file; waits for it at most `END_S`."""
        for each in self._started.values():
            each.patience.give_up()
        wait([each.result for each in self._started.values()], END_S)


@dataclass(slots=True)
class _Wait:
    rebuilt: StoreError | None = None
    """Why the store is made anew."""
    retry_at: float = 0.0
    retry_s: float = 0.0
    """The pause before that; 0: nothing has failed, nor anything that it was put off for."""
    code: str = ""
    """Of the error that was logged last."""


class Waiting:
    """The partitions that have no open store yet, and when each is tried again. Fold thread only."""

    def __init__(self) -> None:
        self._waits: dict[Given, _Wait] = {}

    def __iter__(self) -> Iterator[Given]:
        return iter(self._waits)

    @property
    def has_failed(self) -> bool:
        """Whether a partition waits for what has kept it from being opened."""
        return any(each.retry_s for each in self._waits.values())

    def due(self) -> list[Given]:
        """Those to be tried now; those that failed last come last."""
        now = time.monotonic()
        return [place for place, each in self._waits.items() if each.retry_at <= now]

    def is_slowed(self, place: Given) -> bool:
        """Whether the partition has failed, or was put off for one that has."""
        return place in self._waits and self._waits[place].retry_s > 0

    def why(self, place: Given) -> StoreError | None:
        """Why the store of a partition is made anew, as far as that is known."""
        found = self._waits.get(place)
        return None if found is None else found.rebuilt

    def keep(self, place: Given, rebuilt: StoreError | None) -> None:
        """The store is being made. ``rebuilt``: why anew. Failures before that count on until it is open."""
        each = self._waits.setdefault(place, _Wait())
        each.rebuilt, each.retry_at = rebuilt, 0.0

    def fail(self, place: Given, name: str, error: FreshetError) -> None:
        """``error`` has kept the store from being opened. It is logged once. ``name``: ``keyspace/partition``."""
        failed = self._waits[place] = self._waits.pop(place, _Wait())
        failed.retry_s = min(failed.retry_s * 2 or RETRY_S, RETRY_S_MAX)
        failed.retry_at = time.monotonic() + failed.retry_s
        if failed.code != error.code:
            failed.code = error.code
            log.warning(
                "partition can't be taken yet, trying again",
                partition=name,
                code=error.code,
                reason=str(error),
                hint=error.hint,
            )

    def put_off(self, behind: Given, places: Iterable[Given]) -> None:
        """Tries none of ``places`` before ``behind``, which has failed: it may well be so with all. They come last."""
        failed = self._waits[behind]
        for place in (*places, behind):
            each = self._waits[place] = self._waits.pop(place, _Wait())
            each.retry_at = max(each.retry_at, failed.retry_at)
            each.retry_s = max(each.retry_s, failed.retry_s)

    def end(self, place: Given) -> None:
        """The partition is open, or not assigned to this process any more."""
        self._waits.pop(place, None)
