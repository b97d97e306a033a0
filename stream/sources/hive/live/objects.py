"""Fetches and publishes what belongs to no table: databases, functions, the catalog itself.

A set of objects is published in a pass: a record says that it has begun, then its members are listed and published,
then a record says that it is whole. The fold refuses a member that was written or dropped after it was read, so events
in between need no care here (docs/concepts/catalog.md, *Partitions and other objects*).

Some changes and drops leave no event, so all is compared with the metastore once in a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import structlog

from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.messages import FLAVOR
from stream.sources.hive.object_events import CATALOG, DATABASE, FUNCTION
from stream.sources.hive.objects import image_of
from stream.sources.hive.recent_drops import RecentDrops
from stream.sources.hive.refusals import Refusals
from stream.sources.hive.rpc.connection import MetastoreRefused, MetastoreTimeout
from stream.sources.hive.structs import Struct, ThriftError, encode_struct
from stream.wire.events import Change, ObjectImage, ObjectSet

log = structlog.get_logger(__name__)

Values = tuple[str, ...]
OF_CATALOG: Final = (CATALOG, DATABASE, FUNCTION)
LOOK_AGAIN_S: Final = 300.0
"""How often all is compared with the metastore."""


class Objects:
    """What is to be fetched, and its fetching. ``publish``: changes at the position that was read last.

    ``position``: reads the log to the server's end and returns that event. ``drops``: those that were published.
    """

    def __init__(
        self,
        metastore: Metastore,
        publish: Callable[[list[Change]], None],
        position: Callable[[], int],
        drops: RecentDrops,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drops = drops
        self._refusals = Refusals[tuple[str, Values | None]](clock)
        """Objects that the metastore could not give: kind and name; None: all of the kind."""
        self._metastore = metastore
        self._publish = publish
        self._position = position
        self._sets: set[str] = set()
        self._single: set[tuple[str, Values]] = set()
        self._voids = 0
        """How many times something was voided: what was read before counts no more, and is read again."""
        self._shown: dict[tuple[str, Values], int] = {}
        """The hash of each object as it was published."""
        self._unlisted = {DATABASE, FUNCTION}
        """Kinds of which a process before this one may have published what is gone since, and no event says so."""
        self._clock = clock
        self._look_at_s = clock() + LOOK_AGAIN_S
        self._to_compare: list[str] = []
        """Databases that are still to be compared."""

    @property
    def is_due(self) -> bool:
        """Whether anything else is to be fetched."""
        return bool(self._sets or self._single or self._refusals)

    def want_catalog(self) -> None:
        """Everything that belongs to no table is unknown, and to be fetched."""
        self._voids += 1
        self._sets.update(OF_CATALOG)

    def note(self, change: ObjectImage | ObjectSet) -> None:
        """An event said this."""
        if change.kind in OF_CATALOG:
            if isinstance(change, ObjectSet):
                self._voids += 1
                self._sets.add(change.kind)
            elif change.change == "written":
                self._single.add((change.kind, change.name))
            elif change.change == "dropped":
                self._shown.pop((change.kind, change.name), None)
                if change.kind == DATABASE:  # later versions than 4.0.1 log no drop of its functions
                    of_db = (FUNCTION, change.name[0])
                    self._single |= {(kind, name) for kind, name in self._shown if (kind, name[0]) == of_db}

    def step(self) -> bool:
        """Fetch and publish one set or object; False if there is nothing to do.

        What the metastore refuses, or does not tell in time, is tried again after a while, and holds up nothing else.
        """
        self._try_again()
        if self._sets:
            kind = min(self._sets)
            self._sets.discard(kind)  # what is noted from here on may be newer than what is read
            self._single = {each for each in self._single if each[0] != kind}
            try:
                self._fetch(kind, None)
            except BaseException:
                self._sets.add(kind)
                raise
        elif self._single:
            kind, name = min(self._single)
            self._single.discard((kind, name))
            try:
                self._fetch(kind, name)
            except BaseException:
                self._single.add((kind, name))
                raise
        else:
            return self._compare_next()
        return True

    def _compare_next(self) -> bool:
        """Compare one database with what was published, or all functions; False if it is not time.

        What differs is read and published as if an event had written it.
        """
        try:
            if self._to_compare:
                db = self._to_compare.pop()
                self._compare(DATABASE, (db,), self._metastore.database(db))
                return True
            if self._clock() < self._look_at_s:
                return False
            self._look_at_s = self._clock() + LOOK_AGAIN_S
            self._look()
        except MetastoreRefused as error:
            log.warning("objects cannot be compared", reason=str(error))
        return True

    def _look(self) -> None:
        """Compare all but the databases themselves. What an earlier process has published of sets is published anew."""
        self._sets |= self._unlisted
        self._unlisted.clear()
        self._compare(CATALOG, (self._metastore.catalog,), self._metastore.catalog_object())
        functions = self._metastore.functions()
        for name, found in functions:
            self._compare(FUNCTION, name, found)
        databases = self._metastore.databases()
        there = {*((FUNCTION, name) for name, _ in functions), *((DATABASE, (db,)) for db in databases)}
        self._single |= {each for each in self._shown if each[0] != CATALOG} - there
        self._to_compare = databases if DATABASE not in self._sets else []

    def _compare(self, kind: str, name: Values, found: Struct | None) -> None:
        shown = self._shown.get((kind, name))
        if shown != (hash(encode_struct(found)) if found is not None else None):
            self._single.add((kind, name))

    def _images(self, kind: str, members: Sequence[tuple[Values, Struct]], lo: str, hi: str) -> list[Change]:
        images: list[Change] = []
        for name, found in members:
            struct = encode_struct(found)
            self._shown[kind, name] = hash(struct)
            images.append(ObjectImage(kind, 0, name, "image", image_of(found, _STRUCTS[kind]), struct, lo, hi))
        return images

    def _try_again(self) -> None:
        for kind, name in self._refusals.due():
            if name is None:
                self._sets.add(kind)
            else:
                self._single.add((kind, name))

    def _fetch(self, kind: str, name: Values | None) -> None:
        """Publish an object, or (None) all of its kind."""
        try:
            if name is None:
                self._publish_set(kind)
            else:
                self._publish_one(kind, name)
        except MetastoreRefused as error:
            self._refused(kind, name, error)
        except (MetastoreTimeout, ThriftError) as error:
            self._metastore.last_event()  # an outage is raised as what it is
            self._refused(kind, name, error)
        else:
            self._refusals.forget((kind, name))

    def _refused(self, kind: str, name: Values | None, error: Exception) -> None:
        self._refusals.note((kind, name))
        log.warning("objects cannot be read", kind=kind, name=name, reason=str(error))

    def _publish_set(self, kind: str) -> None:
        """A pass over all members. It begins before they are listed, so that what is made meanwhile is in it."""
        at = self._position()
        lo, voids = f"{FLAVOR}/{at}", self._voids
        self._publish([ObjectSet(kind, 0, "begun", lo=lo)])
        for chunk in self._all_of(kind):
            hi = f"{FLAVOR}/{self._position()}"
            if self._voids > voids or not self._drops.allow(kind, 0, at):
                self._sets.add(kind)
                return
            self._publish(self._images(kind, chunk, lo, hi))
        self._unlisted.discard(kind)
        self._publish([ObjectSet(kind, 0, "complete", lo=lo)])

    def _publish_one(self, kind: str, name: Values) -> None:
        """An object by name; if it is not there it was dropped."""
        at, voids = self._position(), self._voids
        found = self._one_of(kind, name)
        lo, hi = f"{FLAVOR}/{at}", f"{FLAVOR}/{self._position()}"
        if self._voids > voids or not self._drops.allow(kind, 0, at):
            self._single.add((kind, name))
        elif found is None:
            self._shown.pop((kind, name), None)
            self._publish([ObjectImage(kind, 0, name, "dropped", lo=lo, hi=hi)])
        else:
            self._publish(self._images(kind, [(name, found)], lo, hi))

    def _all_of(self, kind: str) -> Iterator[Sequence[tuple[Values, Struct]]]:
        metastore = self._metastore
        if kind == CATALOG:
            yield [((metastore.catalog,), found)] if (found := metastore.catalog_object()) is not None else []
        elif kind == DATABASE:
            for db in metastore.databases():
                database = metastore.database(db)
                yield [((db,), database)] if database is not None else []
        else:
            yield metastore.functions()

    def _one_of(self, kind: str, name: Values) -> Struct | None:
        if kind == CATALOG:
            return self._metastore.catalog_object()
        return self._metastore.database(name[0]) if kind == DATABASE else self._metastore.function(name[0], name[1])


_STRUCTS: Final = {CATALOG: "Catalog", DATABASE: "Database", FUNCTION: "Function"}
