"""The tables as of the position that is being read. Pure.

The server tells only the schema of now, and a backlog may be hours older. So a schema that the server told counts from
the position on that the server had reached by then, if no DDL of the table comes before it. Until then the topic's own
description counts, which is that of the position. After DDL there is none: the table is void, and always read through.
So it is with one that the server can't tell now, because somebody has locked it, until it can.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from stream.sources.mariadb.gtid import GtidPosition, MysqlGtidSet
from stream.sources.mariadb.schema import ColumnInfo, TableInfo, is_missing, missing_table
from stream.wire.events import DescribeTable

Xid: TypeAlias = tuple[int, bytes, bytes]
"""Format, gtrid and bqual of an XA transaction."""
BECOMING_VISIBLE: Final = "an XA transaction is becoming visible"
"""Why a table is held, in its description. It is in topics, and sources that begin again know it by these words."""
HELD: Final = "held"
"""The annotation in the source's state that names the XA transactions which held tables wait for.

A source that begins again reads the log after the XA COMMIT. By these words it goes on holding the tables, in a new
epoch too. Without them the topic's description says that a table is held, but not for what.
"""
HELD_VERSION: Final = 1
HELD_CHARS_MAX: Final = 7_000


@dataclass(slots=True)
class _Expected:
    """A schema that will be known at a position. ``xids``: transactions that must have become visible before.

    ``known_at`` None: the table is locked, so nobody knows its schema, nor whether it is there.
    """

    info: TableInfo | None
    known_at: GtidPosition | None
    xids: frozenset[Xid] = frozenset()

    def is_known(self, position: GtidPosition) -> bool:
        """Whether it is that of ``position``."""
        return self.known_at is not None and position.covers(self.known_at)


class Catalog:
    """Schema of the included tables, by ``db.table``."""

    def __init__(self) -> None:
        self._known: dict[str, TableInfo] = {}
        self._expected: dict[str, _Expected] = {}
        self._described: dict[str, DescribeTable] = {}

    def resume(self, live: Mapping[str, TableInfo], at: GtidPosition, locked: Set[str] = frozenset()) -> None:
        """Begin with what is described. ``live``: the server's tables, read before it said that it is at ``at``.

        ``locked``: those that could not be read. What is described counts on, as for one that was altered.
        """
        held = self.held
        self._known.clear()
        self._expected.clear()
        for name, described in self._described.items():
            info = live.get(name)
            if info is None or described != info.describe():
                self._known[name] = _info_of(described)
                self._expected[name] = _Expected(info, None if name in locked else at)
            else:
                self._known[name] = info
                if described.sql_types != info.describe().sql_types:
                    self._expected[name] = _Expected(info, at)
        for name in (live.keys() | locked) - self._described.keys():
            self._expected[name] = _Expected(live.get(name), None if name in locked else at)
        for name, xids in held.items():
            self._wait(name, _Expected(live.get(name), None if name in locked else at, xids))

    def differing(self, live: Mapping[str, TableInfo]) -> list[str]:
        """The tables that are not as they are described. ``live``: those that the server lists."""
        listed = {name: info.describe() for name, info in live.items()}
        return [name for name, said in self._described.items() if said != listed.get(name, missing_table(name))]

    def describe_as(self, descriptions: Mapping[str, DescribeTable]) -> None:
        """Set what the topic says of the tables; `resume` must follow."""
        self._described = dict(descriptions)

    @property
    def names(self) -> Set[str]:
        """The tables that are described."""
        return self._described.keys()

    @property
    def present(self) -> list[tuple[str, str]]:
        """Database and table of those that are described, and not as gone, in order."""
        names = sorted(name for name, said in self._described.items() if not is_missing(said))
        return [(database, table) for database, _, table in (name.partition(".") for name in names)]

    def get(self, name: str) -> TableInfo | None:
        """The schema of a table at the present position; None if it is not known, or there is no such table."""
        return self._known.get(name)

    def is_waiting(self, name: str) -> bool:
        """Whether the schema is not known yet, but will be."""
        return name in self._expected and name not in self._known

    def doubt(self, name: str, info: TableInfo | None, at: GtidPosition | None) -> None:
        """Forget a table's schema. ``info``: the server's, read before it said that it is at ``at``.

        ``at`` None: the table is locked.
        """
        before = self._expected.get(name)
        self._wait(name, _Expected(info, at, before.xids if before else frozenset()))

    @property
    def locked(self) -> list[str]:
        """The tables that could not be read, and were not `learn`t since."""
        return [name for name, expected in self._expected.items() if expected.known_at is None]

    def learn(self, name: str, info: TableInfo | None, at: GtidPosition) -> None:
        """One of the `locked` tables could be read, and then the server said that it is at ``at``."""
        self._expected[name] = replace(self._expected[name], info=info, known_at=at)

    def hold(self, names: Iterable[str], xid: Xid) -> None:
        """Keep tables read through until an XA transaction that is committed in the log is visible to reads."""
        for name in names:
            expected = self._expected.get(name) or _Expected(self._known.get(name), GtidPosition({}))
            self._wait(name, replace(expected, xids=expected.xids | {xid}))

    @property
    def held(self) -> dict[str, frozenset[Xid]]:
        """The tables that are held, and the transactions that each waits for."""
        return {name: expected.xids for name, expected in self._expected.items() if expected.xids}

    def _wait(self, name: str, expected: _Expected) -> None:
        self._known.pop(name, None)
        self._expected[name] = expected
        described = missing_table(name) if expected.info is None else expected.info.describe()
        if expected.known_at is None:  # it may be as it was
            described = self._described.get(name, described)
        why = BECOMING_VISIBLE if expected.xids else "its schema at this position is not known"
        self._described[name] = replace(described, cacheable=False, reason=why)

    def forget_rolled_back(self, logged: GtidPosition) -> None:
        """Do not wait for what MySQL owned when a schema was read, and neither has nor owns now (``logged``)."""
        for name, expected in self._expected.items():
            known_at = expected.known_at
            if isinstance(known_at, MysqlGtidSet) and isinstance(logged, MysqlGtidSet):
                self._expected[name] = replace(expected, known_at=known_at.within(logged))

    def settle(self, position: GtidPosition, prepared: Callable[[], Set[Xid]]) -> dict[str, bool]:
        """Adopt what is known by now. Returns the tables to describe anew, and whether their rows are void.

        They are not if only the words for the types differ, as after a version that did not tell them.

        ``prepared``: the XA transactions that reads can't see yet.
        """
        found: dict[str, bool] = {}
        reached = [name for name, expected in self._expected.items() if expected.is_known(position)]
        invisible = prepared() if any(self._expected[name].xids for name in reached) else frozenset()
        for name in sorted(reached):
            if self._expected[name].xids & invisible:
                continue
            info = self._expected.pop(name).info
            now = missing_table(name) if info is None else info.describe()
            before = self._described.get(name)
            if info is None:
                self._known.pop(name, None)
                if before is None:
                    continue  # it was locked while it was made, and nobody was told of it
            else:
                self._known[name] = info
            if before is None or before != now:
                found[name] = True
            elif before.sql_types != now.sql_types:
                found[name] = False
            else:
                continue
            self._described[name] = now
        return found

    def description(self, name: str) -> DescribeTable:
        """The last description of a table that has one."""
        return self._described[name]

    @property
    def waited_for(self) -> int:
        """The number of tables whose schema is waited for."""
        return len(self._expected)

    @property
    def is_settled(self) -> bool:
        """Whether no schema is waited for."""
        return not self._expected


def held_words(held: Mapping[str, Set[Xid]]) -> str:
    """What `read_held` reads; "" if nothing is held, or too much. ``held``: table → what it waits for."""
    if not held:
        return ""
    xids = sorted(set().union(*held.values()))
    number = {xid: at for at, xid in enumerate(xids)}
    said = {
        "version": HELD_VERSION,
        "xids": [[form, gtrid.hex(), bqual.hex()] for form, gtrid, bqual in xids],
        "tables": {table: sorted(number[xid] for xid in held[table]) for table in sorted(held)},
    }
    words = json.dumps(said, ensure_ascii=False)
    return words if len(words) <= HELD_CHARS_MAX else ""


def read_held(words: str) -> dict[str, frozenset[Xid]]:
    """Table → the transactions that it waits for.

    Nothing is known of a table that is left out: it may wait for any transaction. So it is if there was no room for all
    of them, and if the source was of an older version, or of a newer one.
    """
    try:
        said = json.loads(words)
        if said["version"] != HELD_VERSION:
            return {}
        xids = [(int(form), bytes.fromhex(gtrid), bytes.fromhex(bqual)) for form, gtrid, bqual in said["xids"]]
        return {table: frozenset(xids[at] for at in waits) for table, waits in said["tables"].items()}
    except (ValueError, TypeError, LookupError, AttributeError):
        return {}


def _info_of(described: DescribeTable) -> TableInfo:
    database, _, table = described.table.partition(".")
    columns = tuple(
        ColumnInfo(column.name, column.kind, column.exact, sql_type=column.sql_type) for column in described.columns
    )
    problem = "" if described.cacheable else described.reason or "it was always read through"
    info = TableInfo(database, table, columns, described.primary_key, problem=problem, prefix=described.prefix)
    names = frozenset(column.name for column in columns)
    return replace(info, is_recomputed=True, generated=names)  # a description does not tell
