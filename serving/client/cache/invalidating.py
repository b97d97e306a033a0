"""The invalidator: applies a change stream to the application's cache. Any number may run, and be killed anywhere."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Final

from .._tokens import Vector
from ..errors import ClientError
from ..streaming import StreamEvent
from .entries import EVERY_TABLE, Entry, Floor, Raise, decode, encode, floor_name, invalidated, parsed, raised, row_name
from .stores import Store

if TYPE_CHECKING:
    from ..client import FreshetClient

_PAUSE_S_MAX: Final = 0.02
_LOST: Final = frozenset({"stream_too_old", "checkpoint_lost", "bad_checkpoint"})
"""Codes with which a stream can't go on where it was: what was cached before is void."""


class Invalidator:
    """Keeps the entries of ``tables`` (``db.table``) of a keyspace in a store.

    The floor is raised before the tombstones are set, so that it is past every tombstone that the store may drop.
    """

    def __init__(
        self, store: Store, keyspace: str, tables: Collection[str], *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store, self._keyspace, self._tables = store, keyspace, frozenset(tables)
        self._sleep = sleep
        self._begins_anew = False

    def follow(self, client: FreshetClient, checkpoint: str = "") -> Iterator[str]:
        """Applies the stream from a checkpoint on, for ever; yields after each event the checkpoint to keep, or "".

        Without one, or with one that the topic no longer has, everything that is cached counts as void. Raises
        `ClientError` when the stream gives up, and what the store raises: begin again at the last checkpoint.
        """
        while True:
            if not checkpoint:
                self.begin_anew()
            try:
                for event in client.stream(self._keyspace, checkpoint or "now", tables=sorted(self._tables)):
                    self.apply(event)
                    checkpoint = event.checkpoint or checkpoint
                    yield "" if self._begins_anew else checkpoint
            except ClientError as error:
                if error.code not in _LOST:
                    raise
                checkpoint = ""

    def begin_anew(self) -> None:
        """The next event that has a token voids all that is cached: what was told before it is not known."""
        self._begins_anew = True

    def apply(self, event: StreamEvent) -> None:
        """Does to the cache what an event asks for. Applied again, it changes nothing that is newer."""
        if event.kind == "watermark":
            told = parsed(event.token)
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
                if change.table in self._tables:
                    rows.add(row_name(self._keyspace, change.table, change.key))
            elif change.kind != "backfill":
                voided.add(change.table if change.table in self._tables else EVERY_TABLE)
        floor = self._raise(Raise(token, voided=sorted(voided)))
        for name in sorted(rows):
            self._invalidate(name, floor.generation, token)

    def _raise(self, by: Raise) -> Floor:
        name = floor_name(self._keyspace)
        while True:
            found = self._store.get([name]).get(name)
            before = None if self._begins_anew or found is None else decode(found.raw, Floor)
            after = raised(before, by, uuid.uuid4().hex)
            if after == before or self._store.swap(name, encode(after), found, 0):
                self._begins_anew = False
                return after
            self._pause()

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
