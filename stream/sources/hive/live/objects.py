"""Fetches and publishes databases, functions, the catalog itself, and the partitions of tables with their statistics.

A set of objects is published in a pass: a record says that it has begun, then its members are listed and published,
then a record says that it is whole. The fold refuses a member that was written or dropped after it was read, so events
in between need no care here (docs/concepts/catalog.md, *Partitions and other objects*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import structlog

from stream.sources.hive.live.connection import MetastoreRefused
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.messages import FLAVOR, HiveMessageError
from stream.sources.hive.object_events import CATALOG, DATABASE, FUNCTION, PARTITION, PARTITION_STATISTICS
from stream.sources.hive.objects import columns_of, image_of
from stream.sources.hive.partition_names import partition_name
from stream.sources.hive.structs import Struct, encode_struct
from stream.wire.events import Change, ObjectImage, ObjectSet

log = structlog.get_logger(__name__)

Values = tuple[str, ...]
OF_CATALOG: Final = (CATALOG, DATABASE, FUNCTION)
PARTITIONS_MAX: Final = 500
"""Partitions that are fetched, and published, together."""
SINGLE_MAX: Final = 50
"""Written partitions of a table that are fetched one by one. With more of them, all are fetched."""


class _Renamed(Exception):
    """The name was another table's for a while."""


class Objects:
    """What is to be fetched, and its fetching. ``publish``: changes at the position that was read last.

    ``position``: reads the log to the server's end and returns that event. ``name_of``: table id → its name, or "".
    ``rebound_at``: name → the last event that made it the name of a table or took it away.
    """

    def __init__(
        self,
        metastore: Metastore,
        publish: Callable[[list[Change]], None],
        position: Callable[[], int],
        name_of: Callable[[int], str],
        rebound_at: Callable[[str], int],
    ) -> None:
        self._rebound_at = rebound_at
        self._metastore = metastore
        self._publish = publish
        self._position = position
        self._name_of = name_of
        self._sets: set[str] = set()
        self._single: set[tuple[str, Values]] = set()
        self._partitions: dict[int, set[Values] | None] = {}
        """Table id → its partitions that were written; None: all of them."""

    @property
    def tables(self) -> list[str]:
        """The tables whose partitions are to be fetched."""
        return [name for name in map(self._name_of, self._partitions) if name]

    @property
    def is_due(self) -> bool:
        """Whether anything else is to be fetched."""
        return bool(self._sets or self._single)

    def want_catalog(self) -> None:
        """Everything that belongs to no table is to be fetched."""
        self._sets.update(OF_CATALOG)

    def want_partitions(self, table_id: int) -> None:
        """All partitions of a table are to be fetched."""
        self._partitions[table_id] = None

    def forget(self, table_id: int) -> None:
        """The table is gone, or has no partitions."""
        self._partitions.pop(table_id, None)

    def note(self, change: ObjectImage | ObjectSet) -> None:
        """An event said this."""
        if change.kind == PARTITION:  # its statistics are fetched with it
            if isinstance(change, ObjectSet):
                if change.change == "void":
                    self.want_partitions(change.table_id)
            elif change.change == "written":
                written = self._partitions.setdefault(change.table_id, set())
                if written is not None:
                    written.add(change.name)
        elif change.kind in OF_CATALOG:
            if isinstance(change, ObjectSet):
                self._sets.add(change.kind)
            elif change.change == "written":
                self._single.add((change.kind, change.name))

    def step(self) -> bool:
        """Fetch and publish one set, object or table's partitions; False if there is nothing to do."""
        if self._sets:
            kind = min(self._sets)
            self._publish_set(kind, 0, lambda: self._all_of(kind))
            self._sets.discard(kind)
            self._single = {each for each in self._single if each[0] != kind}
        elif self._single:
            kind, name = min(self._single)
            self._single.discard((kind, name))
            self._publish_read(kind, 0, [name], lambda: [(name, self._one_of(kind, name))])
        elif self._partitions:
            self._publish_partitions(min(self._partitions))
        else:
            return False
        return True

    def _publish_partitions(self, table_id: int) -> None:
        name, written = self._name_of(table_id), self._partitions.pop(table_id)
        if not name:
            return
        try:
            if written is None or len(written) > SINGLE_MAX:
                self._publish_set(PARTITION, table_id, lambda: self._partitions_of(name))
                self._publish_set(PARTITION_STATISTICS, table_id, lambda: self._statistics_of(name))
            else:
                asked = sorted(written)
                self._publish_read(PARTITION, table_id, asked, lambda: self._some_partitions(name, asked))
                self._publish_read(PARTITION_STATISTICS, table_id, asked, lambda: self._some_statistics(name, asked))
        except _Renamed:
            self.want_partitions(table_id)
        except (MetastoreRefused, HiveMessageError) as error:  # the others go on; these are read through
            log.warning("partitions cannot be read", table=name, reason=str(error))
        except BaseException:
            self.want_partitions(table_id)
            raise

    def _partitions_of(self, name: str) -> Iterator[Sequence[tuple[Values, Struct]]]:
        """All partitions of the table that has this name all the time. Raises `_Renamed`."""
        began = self._position()
        try:
            for chunk in self._metastore.partitions(name, PARTITIONS_MAX):
                self._check_name(name, began)
                yield chunk
        except MetastoreRefused:
            self._check_name(name, began)
            raise

    def _some_partitions(self, name: str, asked: Sequence[Values]) -> list[tuple[Values, Struct | None]]:
        began = self._position()
        found = [(each, self._metastore.partition(name, each)) for each in asked]
        self._check_name(name, began)
        return found

    def _statistics_of(self, name: str) -> Iterator[Sequence[tuple[Values, Struct]]]:
        """The statistics of all partitions that have some. Raises `_Renamed`."""
        began = self._position()
        columns, _ = self._columns_of(name, began)
        names = self._metastore.partition_names(name)
        for at in range(0, len(names), PARTITIONS_MAX):
            chunk = self._metastore.partition_statistics(name, columns, names[at : at + PARTITIONS_MAX])
            self._check_name(name, began)
            yield chunk

    def _some_statistics(self, name: str, asked: Sequence[Values]) -> list[tuple[Values, Struct | None]]:
        began = self._position()
        columns, keys = self._columns_of(name, began)
        names = [partition_name(keys, each) for each in asked if len(each) == len(keys)]
        found = dict(self._metastore.partition_statistics(name, columns, names))
        self._check_name(name, began)
        return [(each, found.get(each)) for each in asked]

    def _columns_of(self, name: str, began: int) -> tuple[list[str], tuple[str, ...]]:
        """The names of a table's columns and of its partition keys. Raises `_Renamed`."""
        table = self._metastore.table(name)
        if table is None:  # dropped meanwhile, as the log will tell
            self._check_name(name, began)
            return [], ()
        return columns_of(table.image), table.partition_keys

    def _check_name(self, name: str, began: int) -> None:
        """Partitions are asked for by name, and don't tell their table's id. Raises `_Renamed`."""
        self._position()
        if self._rebound_at(name) > began:
            raise _Renamed(name)

    def _publish_set(
        self, kind: str, table_id: int, members: Callable[[], Iterable[Sequence[tuple[Values, Struct]]]]
    ) -> None:
        """A pass over all members. It begins before they are listed, so that what is made meanwhile is in it."""
        lo = f"{FLAVOR}/{self._position()}"
        self._publish([ObjectSet(kind, table_id, "begun", lo=lo)])
        for chunk in members():
            hi = f"{FLAVOR}/{self._position()}"
            self._publish([_image(kind, table_id, name, found, lo, hi) for name, found in chunk])
        self._publish([ObjectSet(kind, table_id, "complete", lo=lo)])

    def _publish_read(
        self,
        kind: str,
        table_id: int,
        names: Sequence[Values],
        read: Callable[[], Sequence[tuple[Values, Struct | None]]],
    ) -> None:
        """Some objects by name; one that is not there was dropped."""
        lo = f"{FLAVOR}/{self._position()}"
        try:
            found = read()
        except BaseException:
            self._single.update((kind, name) for name in names if not table_id)
            raise
        hi = f"{FLAVOR}/{self._position()}"
        changes: list[Change] = []
        for name, each in found:
            if each is None:
                changes.append(ObjectImage(kind, table_id, name, "dropped", lo=lo, hi=hi))
            else:
                changes.append(_image(kind, table_id, name, each, lo, hi))
        self._publish(changes)

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


_STRUCTS: Final = {
    CATALOG: "Catalog",
    DATABASE: "Database",
    FUNCTION: "Function",
    PARTITION: "Partition",
    PARTITION_STATISTICS: "ColumnStatistics",
}


def _image(kind: str, table_id: int, name: Values, found: Any, lo: str, hi: str) -> ObjectImage:
    image, struct = image_of(found, _STRUCTS[kind]), encode_struct(found)
    return ObjectImage(kind, table_id, name, "image", image, struct, lo, hi)
