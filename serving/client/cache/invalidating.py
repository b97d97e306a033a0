"""The invalidator: applies a change stream to the application's cache. Any number may run, and be killed anywhere.

They need not follow the same tables. What one has dealt with counts for those that it follows.
"""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from .._tokens import Vector
from ..errors import ClientError
from ..streaming import StreamEvent
from .entries import (
    EVERY_TABLE,
    Entry,
    Floor,
    Raise,
    check_names,
    covers,
    decode,
    encode,
    floor_name,
    followed_kind,
    invalidated,
    merged,
    object_name,
    parsed,
    raised,
    row_name,
)
from .stores import Store, checked

if TYPE_CHECKING:
    from ..client import FreshetClient
    from .objects import Composites

_PAUSE_S_MAX: Final = 0.02
_MARK: Final = "@"
"""Between the parts of a kept checkpoint: the stream's, the generation, and what was dealt with."""
_FOLLOWED_BY: Final = "."
"""Between a kept generation and a digest of what was followed in it."""
_LOST: Final = frozenset({"stream_too_old", "checkpoint_lost", "bad_checkpoint"})
"""Codes with which a stream can't go on where it was: what was cached before is void."""


class Invalidator:
    """Keeps the entries of ``tables`` (``db.table``) of a keyspace in a store, and those of composite ``objects``.

    The floor is raised before the tombstones are set, so that it is past every tombstone that the store may drop.

    A floor that was lost may be made anew by an invalidator that is behind this one. Values that are kept then may lack
    events which this one has dealt with, and does not see again. So it goes on in a generation only if it knows it from
    before, or if that began at or past all that it has dealt with; else it begins another one. It knows one from before
    only if it followed the same there: of tables that it did not follow values may lack what it was not told.
    """

    def __init__(
        self,
        store: Store,
        keyspace: str,
        tables: Collection[str] = (),
        *,
        objects: Composites | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._keyspace = checked(store), keyspace
        self._objects: dict[str, list[tuple[str, int]]] = {}
        """Table → the kinds of objects that it is part of, each with the number of its columns that name one."""
        kinds = {followed_kind(kind, of): of for kind, of in (objects or {}).items()}
        for kind, of in kinds.items():
            for table, columns in of.items():
                self._objects.setdefault(table, []).append((kind, len(columns)))
        self._rows = frozenset(tables)
        self._tables = self._rows | self._objects.keys()
        check_names(self._tables)
        self._followed = sorted({*self._rows, *kinds})
        self._digest = hashlib.sha256(msgspec.json.encode(self._followed)).hexdigest()[:16]
        self._sleep = sleep
        self._begins_anew = False
        self._generation = ""
        """Whose values lack no event that was dealt with."""
        self._dealt_with = Vector()
        """By this invalidator, and before its checkpoint."""

    def follow(self, client: FreshetClient, checkpoint: str = "") -> Iterator[str]:
        """Applies the stream from a checkpoint on, for ever; yields after each event the checkpoint to keep, or "".

        Such a checkpoint is the stream's and this one's `state`, and of no use elsewhere. Without one, or with one that
        the topic no longer has, everything that is cached counts as void. Raises `ClientError` when the stream gives
        up, and what the store raises: begin again at the last checkpoint.
        """
        checkpoint, _, state = checkpoint.partition(_MARK)
        self.go_on(state)
        while True:
            if not checkpoint:
                self.begin_anew()
            try:
                for event in client.stream(self._keyspace, checkpoint or "now", tables=sorted(self._tables)):
                    self.apply(event)
                    checkpoint = event.checkpoint or checkpoint
                    yield "" if self._begins_anew or not checkpoint else f"{checkpoint}{_MARK}{self.state}"
            except ClientError as error:
                if error.code not in _LOST:
                    raise
                checkpoint = ""

    def begin_anew(self) -> None:
        """The next event that has a token voids all that is cached: what was told before it is not known."""
        self.go_on("")
        self._begins_anew = True

    @property
    def state(self) -> str:
        """To be kept with a checkpoint, for `go_on`."""
        return f"{self._generation}{_FOLLOWED_BY}{self._digest}{_MARK}{self._dealt_with}"

    def go_on(self, state: str) -> None:
        """The next event is the one after a checkpoint, at which an invalidator was in this state. "": nobody knows."""
        self._begins_anew = False
        known, _, vector = state.partition(_MARK)
        generation, _, followed = known.partition(_FOLLOWED_BY)
        self._generation = generation if followed == self._digest else ""
        self._dealt_with = parsed(vector)

    def apply(self, event: StreamEvent) -> None:
        """Does to the cache what an event asks for. Applied again, it changes nothing that is newer."""
        if event.kind == "watermark":
            told, _ = Vector.parse_known(event.token)  # of what only a newer client reads it says nothing
            if told:
                self._raise(Raise(told, told))
        elif event.kind == "transaction":
            self._transaction(event)
        else:  # unreadable, or a kind that this version does not know: anything may have changed
            self._raise(Raise(Vector(), voids_all=True))

    def _transaction(self, event: StreamEvent) -> None:
        token = parsed(event.token)
        rows: set[str] = set()
        voided: set[str] = set()
        for change in event.changes:
            if change.kind == "row" and change.key:
                if change.table in self._rows:
                    rows.add(row_name(self._keyspace, change.table, change.key))
                for kind, count in self._objects.get(change.table, ()):
                    rows.add(object_name(self._keyspace, kind, change.key[:count]))
            elif change.kind != "backfill":
                voided.add(change.table if change.table in self._tables else EVERY_TABLE)
        floor = self._raise(Raise(token, voided=sorted(voided)))
        for name in sorted(rows):
            self._invalidate(name, floor.generation, token)

    def _raise(self, by: Raise) -> Floor:
        name = floor_name(self._keyspace)
        while True:
            found = self._store.get([name]).get(name)
            before = decode(found.raw, Floor) if found is not None else None
            after = self._after(before, by)
            if after == before or self._store.swap(name, encode(after), found, 0):
                self._begins_anew, self._generation = False, after.generation
                self._dealt_with = merged(str(self._dealt_with), by.reached)
                return after
            self._pause()

    def _after(self, floor: Floor | None, by: Raise) -> Floor:
        """The floor that follows, in another generation if values of this one may lack what was dealt with."""
        another = uuid.uuid4().hex
        if floor is not None and not self._begins_anew and self._fits(floor, by.reached):
            return raised(floor, by, self._followed, another)
        reached = merged(str(self._dealt_with), by.reached)
        before = None if self._begins_anew else floor
        return raised(before, by._replace(reached=reached, voids_all=True), self._followed, another)

    def _fits(self, floor: Floor, reached: Vector) -> bool:
        """Whether no value of the floor's generation lacks what was dealt with.

        What was dealt with of a shard that is told of for the first time is not known, but is before ``reached``.
        """
        if floor.generation != self._generation and not covers(parsed(floor.born), self._dealt_with):
            return False
        first = {shard: each for shard, each in reached.items() if shard not in self._dealt_with}
        held = parsed(floor.reached) if first else Vector()  # of other shards no value is kept
        return covers(parsed(floor.born), Vector({shard: each for shard, each in first.items() if shard in held}))

    def _invalidate(self, name: str, generation: str, token: Vector) -> None:
        while True:
            found = self._store.get([name]).get(name)
            after = invalidated(decode(found.raw, Entry) if found else None, generation, token)
            if after is None or self._store.swap(name, encode(after), found, 0):
                return
            self._pause()

    def _pause(self) -> None:
        """Somebody else was faster. Of all who try one succeeds each time, so this ends."""
        self._sleep(random.uniform(0, _PAUSE_S_MAX))
