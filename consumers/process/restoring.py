"""Makes stores from snapshots in the background, so that the fold of other partitions goes on meanwhile.

A partition whose store is being made is assigned to this process, but not read and not owned: nobody is told to ask for
it here. When the store is there, or none can be made, the partition is taken over as any other. So it is once its place
has said nothing for `SILENT_S`: then it is folded from the topic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Final

from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.patience import SILENT_S, Patience
from consumers.snapshots.places import shown
from consumers.snapshots.restoring import Snapshots, log_refusal
from consumers.store.errors import StoreError
from stream.kafka.topics import Topic

END_S: Final = 5.0
Place = tuple[str, int]
"""Keyspace and partition."""


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

    def outcome(self) -> bool:
        """Whether there is a store. Raises what has prevented it."""
        return not self.patience.is_over and self.result.result()


class BackgroundRestores:
    """As `Snapshots`, but `restore` does not wait. Fold thread only."""

    def __init__(self, snapshots: Snapshots) -> None:
        self._snapshots = snapshots
        self._started: dict[Place, _Restore] = {}
        self._turns = {uri: _Turn() for uri in snapshots.places.values()}

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
            return found.outcome()
        result: Future[bool] = Future()
        patience = Patience()
        turn = self._turns[self.places[keyspace]]
        self._started[place] = _Restore(topic.topic_id, result, patience, turn)
        work = functools.partial(self._snapshots.restore, data_dir, keyspace, partition, topic, bounds, patience)
        # A daemon: a place that does not answer must not keep the process from ending.
        arguments = (turn, patience, result, work)
        Thread(target=self._run, args=arguments, name=f"restore-{partition}", daemon=True).start()
        raise StillRestoring

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
