"""Which rows foreign keys change that the binlog does not tell: those that refer to what a logged row had.

`Children` knows what the rows of a child table refer to. Where it does not, or where a foreign key's meaning is not
known exactly, the whole table is void, as it is without this module (docs/decisions/0029).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from stream.sources.mariadb.cascades.children import Children, Knowledge, Values
from stream.sources.mariadb.cascades.foreign_keys import NOTHING, Cascades, ForeignKey
from stream.sources.mariadb.schema import TableInfo
from stream.wire.events import ABSENT, VALUE, RowChange
from stream.wire.values import NULL

CHANGES_MAX: Final = 10_000
"""Changed rows of parents in one statement. Of more, whole tables are void."""
ROWS_MAX: Final = 20_000
"""Rows that one statement may change by foreign keys. Of more, whole tables are void."""
_RAW_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])
_RAW_DICT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

Columns = Mapping[str, bytes]
"""Column → canonical JSON, of some columns of a row."""


class Change(NamedTuple):
    """A changed row of a parent. ``new`` None: it was deleted."""

    table: str
    old: Columns
    new: Columns | None

    def rule(self, key: ForeignKey) -> str:
        """What a foreign key does then."""
        return key.on_delete if self.new is None else key.on_update


@dataclass(frozen=True, slots=True)
class Relative:
    """A table with foreign keys. ``upward``: those of its own; ``referenced``: the columns that others refer to."""

    info: TableInfo
    upward: tuple[ForeignKey, ...]
    referenced: frozenset[str]

    def refers_to(self, columns: Columns) -> Values:
        """What a row refers to by each of its foreign keys. ``columns``: at least those of the foreign keys."""
        return tuple(value_of(columns, key.columns) for key in self.upward)


class Family:
    """The tables with foreign keys, and what the current statement did to their rows."""

    def __init__(self, children: Children | None = None) -> None:
        self.children = children or Children()
        self._cascades = Cascades({}, {})
        self._relatives: dict[str, Relative] = {}
        self._exact: dict[ForeignKey, int] = {}
        """The foreign keys whose meaning is known exactly, and their number in the child's `Relative.upward`."""
        self._changes: list[Change] = []
        self._logged: set[bytes] = set()
        """Keys of rows that the statement put."""
        self._gone: set[bytes] = set()
        """Keys of rows that the statement logged as deleted, and did not put since."""
        self._written: set[str] = set()
        """Tables with rows that the statement put, and had not deleted: perhaps a foreign key had."""
        self._unclear: set[str] = set()
        """Tables of which the statement changed rows that were not told, or too many."""
        self._voided: dict[str, list[bytes]] = {}

    def look_at(self, cascades: Cascades, table_of: Callable[[str], TableInfo | None]) -> None:
        """Take up the foreign keys. ``table_of``: the tables as they are at the present position."""
        self._cascades = cascades
        infos = {name: info for name in cascades.tables if (info := table_of(name)) is not None and info.cacheable}
        self._relatives, self._exact = {}, {}
        for name, info in infos.items():
            upward = sorted(key for key in cascades.keys if key.child == name and _is_plain(info, key.columns))
            downward = [key for key in cascades.keys if key.parent == name]
            referenced = frozenset(column for key in downward for column in key.referenced)
            self._relatives[name] = Relative(info, tuple(upward), referenced)
            for number, key in enumerate(upward):
                parent = infos.get(key.parent)
                if parent is not None and _is_alike(key, parent, info):
                    self._exact[key] = number
        self.children.follow(
            {
                name: tuple(key.columns for key in found.upward)
                for name, found in self._relatives.items()
                if found.upward
            }
        )

    def relative(self, table: str) -> Relative | None:
        """A table whose rows are to be told by `changed`; None: none of this concerns it."""
        return self._relatives.get(table)

    # -- rows ----------------------------------------------------------------------------------------------------------

    def changed(self, of: Relative, old: tuple[bytes, bytes] | None, new: tuple[bytes, bytes] | None) -> None:
        """A logged row: key and image before, and after."""
        name = of.info.name
        is_followed = self.children.knowledge(name) is not Knowledge.NOTHING  # else it is void anyway
        before = columns_of(of.info, *old) if old is not None and of.referenced else None
        after = columns_of(of.info, *new) if new is not None and (is_followed or before is not None) else None
        if is_followed:
            if old is not None and (new is None or old[0] != new[0]):
                self.children.put(name, old[0], None)
            if new is not None and after is not None:
                self.children.put(name, new[0], of.refers_to(after))
            self._note(name, None if old is None else old[0], None if new is None else new[0])
        if before is None:
            return
        if after is not None and all(before.get(column) == after.get(column) for column in of.referenced):
            return
        if len(self._changes) >= CHANGES_MAX:
            self._unclear.add(name)
        else:
            self._changes.append(Change(name, before, after))

    def _note(self, table: str, old: bytes | None, new: bytes | None) -> None:
        """The statement itself changed this row of a child. Keys."""
        if old is not None and old != new:
            self._gone.add(old)
        if new is not None:
            self._logged.add(new)
            if old is not None or new not in self._gone:
                self._written.add(table)
            self._gone.discard(new)

    def miss(self, table: str) -> None:
        """The statement changed rows of a table that can't be told."""
        self._unclear.add(table)

    def clear(self) -> None:
        """Begin a statement."""
        if self._changes or self._logged or self._unclear:
            self._changes.clear()
            self._logged.clear()
            self._unclear.clear()
            self._written.clear()
        self._gone.clear()

    def narrow(
        self, unlogged: Iterable[str], changed: Mapping[str, bool], void: Iterable[str], *, is_enforced: bool
    ) -> dict[str, set[bytes]]:
        """Of the tables that the statement may have changed by foreign keys: those whose changed rows are known.

        ``unlogged``: all of these tables. ``changed``: table that the statement names → whether rows that it deleted
        or updated are logged. ``void``: tables that are void in the transaction anyway. ``is_enforced``: whether the
        session had foreign keys on; without, they changed nothing.
        """
        search = _Search(self, frozenset(unlogged), frozenset(void))
        for table, has_rows in changed.items():
            if has_rows:
                search.reached.add(table)
            if table in search.void:
                search.lose(table)
            elif (has_rows and self._is_unclear(table)) or not (has_rows or table in search.tables):
                search.lose_below(table)
        search.follow(self._changes)
        found = search.rows()
        for table, rows in found.items():
            if is_enforced:
                for key in rows:
                    self.children.put(table, key, search.put.get((table, key)))
            if rows:
                self._voided.setdefault(table, []).extend(rows)
        return found

    def _is_unclear(self, table: str) -> bool:
        return table in self._unclear or table not in self._relatives

    @property
    def keys(self) -> Sequence[ForeignKey]:
        """All foreign keys."""
        return self._cascades.keys

    def number(self, key: ForeignKey) -> int | None:
        """The number of a foreign key among its child's; None: its meaning is not known exactly."""
        return self._exact.get(key)

    def below(self, table: str) -> frozenset[str]:
        """Every table that a change of ``table`` may change."""
        return self._cascades.below(table)

    def is_logged(self, key: bytes) -> bool:
        """Whether the statement itself put the row."""
        return key in self._logged

    def is_written(self, table: str) -> bool:
        """Whether the statement put a row that a foreign key may have changed before, with those that refer to it."""
        return table in self._written

    # -- transactions --------------------------------------------------------------------------------------------------

    def commit(self) -> dict[str, list[bytes]]:
        """The transaction is given to the publisher. Returns the rows that were voided by it, by table."""
        self.children.commit()
        voided, self._voided = self._voided, {}
        return voided

    def discard(self) -> None:
        """The transaction is not published, or is read once more."""
        self.clear()
        self.children.discard()
        self._voided = {}

    def rolled_back(self) -> None:
        """Some of the transaction was undone."""
        for table in self.children.changed:
            self.children.forget(table)
        self._voided = {}

    def read_again(self, rows: Iterable[RowChange]) -> None:
        """Rows that foreign keys changed, as they are at the present position: perhaps nothing had changed them."""
        for row in rows:
            table = row.key.partition(b"\0")[0].decode()
            of = self._relatives.get(table)
            if of is not None and row.operation == VALUE:
                self.children.correct(table, row.key, of.refers_to(columns_of(of.info, row.key, row.image)))
            elif of is not None and row.operation == ABSENT:
                self.children.correct(table, row.key, None)

    def fill(self, table: str, rows: Iterable[RowChange]) -> None:
        """Rows of a table as they are at the present position."""
        of = self._relatives.get(table)
        if of is None or not of.upward:
            return
        found = []
        for row in rows:
            if row.operation != VALUE:
                self.children.refuse(table)
                return
            found.append((row.key, of.refers_to(columns_of(of.info, row.key, row.image))))
        self.children.fill(table, found)


class _Search:
    """The rows that a statement changed by foreign keys, followed through all levels."""

    def __init__(self, family: Family, tables: frozenset[str], void: frozenset[str]) -> None:
        self._family = family
        self.void = void
        self.tables = tables
        self.reached: set[str] = set()
        """Tables whose change is explained: by logged rows, or by a foreign key to such a table."""
        self._lost: set[str] = set()
        self._found: dict[str, set[bytes]] = {}
        self.put: dict[tuple[str, bytes], Values] = {}
        """Table and key → what a found row refers to now. One that is left out is deleted."""
        self._given: set[tuple[str, int, bytes]] = set()
        """Table, foreign key and value that a row refers to now by it, and did not before."""
        self._deleted: set[bytes] = set()
        self._count = 0

    def lose(self, table: str) -> None:
        """It is not known which rows of a table are changed, so neither is it of those below."""
        self._lost.add(table)
        self.lose_below(table)

    def lose_below(self, table: str) -> None:
        """It is not known which rows below a table are changed."""
        self._lost |= self._family.below(table)

    def follow(self, changes: Iterable[Change]) -> None:
        """Find what refers to the changed rows, what refers to those, and so on."""
        waiting = deque(changes)
        while waiting:
            change = waiting.popleft()
            for key in self._family.keys:
                if key.parent != change.table or key.child in self._lost:
                    continue
                if key.child in self.tables:
                    waiting.extend(self._children(change, key))
                elif self._family.relative(key.child) is None and change.rule(key) not in NOTHING:
                    self.lose_below(key.child)  # MySQL does not name what is not published

    def _children(self, change: Change, key: ForeignKey) -> list[Change]:
        """The rows that one foreign key changes for one changed row, as changes of their own table."""
        is_delete, rule = change.new is None, change.rule(key)
        if rule in NOTHING:
            return []
        number, child = self._family.number(key), self._family.relative(key.child)
        if number is None or child is None or not change.old.keys() >= set(key.referenced):
            self.lose(key.child)
            return []
        old = value_of(change.old, key.referenced)
        new = None if change.new is None else value_of(change.new, key.referenced)
        if old is None or (not is_delete and new == old):
            return []
        is_known = self._is_known(key.child) and (key.child, number, old) not in self._given
        if not is_known or not _is_simple(key, rule, is_delete, child):
            self.lose(key.child)
            return []
        if self._family.is_written(key.child):
            self.lose_below(key.child)
        if key.child in self._lost:
            return []
        referring = self._family.children.referring(key.child, number, old)
        if referring is None:
            self.lose(key.child)
            return []
        found: list[Change] = []
        for row, values in referring.items():
            before = self.put.get((key.child, row), values)
            is_moved = row not in self._deleted and before[number] != old
            if is_moved or self._family.is_logged(row) or self._count >= ROWS_MAX:
                self.lose(key.child)
                return []
            self._count += 1
            self._found.setdefault(key.child, set()).add(row)
            if row in self._deleted:
                continue
            if rule == "CASCADE" and is_delete:
                self._deleted.add(row)
                self.put.pop((key.child, row), None)
                found.append(Change(key.child, key_columns(child.info, row), None))
            else:
                self.put[key.child, row] = _refers_now(child, before, number, None if rule == "SET NULL" else new)
                if rule != "SET NULL" and new is not None:
                    self._given.add((key.child, number, new))
        return found

    def _is_known(self, table: str) -> bool:
        return table not in self.void and self._family.children.knowledge(table) is Knowledge.ALL

    def rows(self) -> dict[str, set[bytes]]:
        """The tables whose changed rows are known, with these."""
        before = -1
        while len(self.reached) > before:
            before = len(self.reached)
            self.reached |= {key.child for key in self._family.keys if key.parent in self.reached} & self.tables
        for key in self._family.keys:
            if key.parent in self.reached and key.child in self.tables and self._family.number(key) is None:
                self.lose(key.child)
        for table in self.tables - self.reached:
            self.lose(table)
        return {table: self._found.get(table, set()) for table in self.tables - self._lost}


def _refers_now(child: Relative, before: Values, number: int, new: bytes | None) -> Values:
    """What a row refers to once a foreign key of it got ``new``; None: NULL, as others then have that share columns."""
    columns = set(child.upward[number].columns)
    return tuple(
        new if each == number else (None if columns & set(child.upward[each].columns) else value)
        for each, value in enumerate(before)
    )


def _is_plain(info: TableInfo, names: Sequence[str]) -> bool:
    """Whether the columns are there, equal values have equal canonical texts, and nothing computes them."""
    found = [column for column in info.columns if column.name in names]
    return 0 < len(found) == len(names) and all(column.exact and column.name not in info.generated for column in found)


def _is_alike(key: ForeignKey, parent: TableInfo, child: TableInfo) -> bool:
    """Whether a foreign key calls equal what has equal canonical texts."""
    if not _is_plain(parent, key.referenced):
        return False
    above = {column.name: column.kind for column in parent.columns}
    below = {column.name: column.kind for column in child.columns}
    return all(above[one] == below[other] for one, other in zip(key.referenced, key.columns, strict=True))


def _is_simple(key: ForeignKey, rule: str, is_delete: bool, child: Relative) -> bool:
    """Whether what a rule does to a row is known: it is deleted, or only these columns get these values.

    A row's key must stay, nothing may refer to the columns or be computed from them, and no other foreign key may get a
    part of its value from them.
    """
    if rule == "CASCADE" and is_delete:
        return True
    columns = set(key.columns)
    if rule not in ("CASCADE", "SET NULL") or columns & {*child.info.primary_key, *child.referenced}:
        return False
    shared = [other for other in child.upward if other is not key and columns & set(other.columns)]
    return not child.info.generated and (rule == "SET NULL" or not shared)


def columns_of(info: TableInfo, key: bytes, image: bytes) -> Columns:
    """The columns of a row."""
    found = {name: bytes(value) for name, value in _RAW_DICT.decode(image).items()}
    found.update(key_columns(info, key))
    return found


def key_columns(info: TableInfo, key: bytes) -> Columns:
    """The key columns of a row."""
    values = _RAW_LIST.decode(key[len(info.key_prefix) :])
    return dict(zip(info.primary_key, map(bytes, values), strict=True))


def value_of(columns: Columns, names: Iterable[str]) -> bytes | None:
    """The values of some columns as one; None if one of them is NULL."""
    found = [columns.get(name, NULL) for name in names]
    return None if NULL in found else b",".join(found)
