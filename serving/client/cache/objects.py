"""Composite objects in the application's cache: rows of several tables that share the beginning of their primary keys.

``{"customer": {"shop.customers": ["id"], "shop.orders": ["customer"]}}``: customer 7 is the row of customers whose key
begins with 7, and the rows of orders whose key does. The object has an entry of its own. A change of any of its rows
replaces it by a tombstone (`Invalidator`); it is filled as a row is, and each of its tables is read with the tokens of
all (docs/concepts/application-cache.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from .._tokens import Vector
from ..errors import BadRequest, HistoryLost
from .entries import Floor, begins_later, check_names, followed_kind, object_name, of_keyspace, parsed
from .reading import Entries, Leased
from .stores import Store

if TYPE_CHECKING:
    from ..client import FreshetClient, Session

Composites: TypeAlias = Mapping[str, Mapping[str, Sequence[str]]]
"""Kind of object → table (``db.table``) → the leading columns of its primary key that name the object."""
ROWS_MAX: Final = 1_000
"""An object with more rows of one table is not kept. It is given, page by page."""
EXACT_KINDS: Final = frozenset({"int", "year", "bit"})
"""Of the columns that name an object: of others a collation, or a spelling, may make two names one object."""
_NUMBER: Final = re.compile("0|-?[1-9][0-9]*")
"""As events spell the numbers that name an object."""


class CachedObject(NamedTuple):
    """Table → its rows of the object, in the order of their keys. ``from_store``: Freshet was not asked."""

    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    from_store: bool


class ObjectCache:
    """Reads composite objects of a keyspace. Safe to share between threads. ``ttl_s``: as of `RowCache`."""

    def __init__(
        self, client: FreshetClient, store: Store, keyspace: str, objects: Composites, *, ttl_s: int = 3600
    ) -> None:
        self._client, self._keyspace, self._ttl_s = client, keyspace, ttl_s
        self._objects = {kind: {name: list(columns) for name, columns in of.items()} for kind, of in objects.items()}
        self._followed = {kind: followed_kind(kind, of) for kind, of in self._objects.items()}
        self._entries = Entries(store, keyspace)
        for of in self._objects.values():
            check_names(of)
        self._checked: dict[str, list[str]] = {}
        """Kind → the voids of its tables when their descriptions were looked at."""

    def get(self, session: Session, kind: str, *key: int) -> CachedObject:
        """The object, each of its tables at least as fresh as all that ``session`` has seen.

        Raises `BadRequest` ``bad_object``, `ClientError`, and what the store raises.
        """
        tables = self._objects.get(kind)
        if tables is None or any(len(columns) != len(key) for columns in tables.values()):
            raise BadRequest(
                f"{kind} is no object of this cache with {len(key)} columns", hint="see objects", code="bad_object"
            )
        if any(_NUMBER.fullmatch(str(part)) is None for part in key):  # a front takes +7 for 7, too, and no event does
            raise BadRequest(
                f"{kind} is named by {', '.join(map(repr, key))}", hint="give whole numbers", code="bad_object"
            )
        is_in_doubt = session.is_in_doubt(self._keyspace)  # before the token, as for a row
        vector, newer = Vector.parse_known(session.token)
        if newer or is_in_doubt:  # it can't be compared here; a front can
            return CachedObject(self._read(session, tables, key)[0], from_store=False)
        demanded = of_keyspace(vector, self._keyspace)
        what = self._followed[kind]
        name = object_name(self._keyspace, what, key)
        seen = self._entries.see(name)
        if self._entries.may_be_used(name, seen, what, list(tables), demanded):
            assert seen.entry is not None
            assert seen.entry.value is not None
            session.adopt(seen.entry.token)
            return CachedObject(seen.entry.value, from_store=True)
        lease = self._entries.lease(name, seen, what, list(tables))
        if lease is None:
            return CachedObject(self._read(session, tables, key)[0], from_store=False)
        return self._fill(session, name, kind, key, lease, demanded)

    def _fill(
        self, session: Session, name: str, kind: str, key: Sequence[int], lease: Leased, demanded: Vector
    ) -> CachedObject:
        """Reads each table with a demand past all that was ever invalidated, and keeps them if nothing came between."""
        wanted, tables = lease.wanted(demanded), self._objects[kind]
        if begins_later(parsed(wanted), demanded):  # as of a row: the session must be told
            self._entries.fill(name, lease, wanted, None, "", self._ttl_s)
            return CachedObject(self._read(session, tables, key)[0], from_store=False)
        reader = self._client.session(wanted)
        try:
            rows, is_proved = self._read(reader, tables, key)
        except HistoryLost:  # as of a row: it may be the floor's alone
            return CachedObject(self._read(session, tables, key)[0], from_store=False)
        session.adopt(reader.token)
        seen, newer = Vector.parse_known(reader.token)
        of_shards = set(of_keyspace(seen, self._keyspace)) <= set(lease.reached) and not newer
        is_kept = is_proved and of_shards
        if is_kept:
            self._check(kind, lease.floor)
        self._entries.fill(name, lease, wanted, rows if is_kept else None, reader.token, self._ttl_s)
        return CachedObject(rows, from_store=False)

    def _read(
        self, reader: Session, tables: Mapping[str, Sequence[str]], key: Sequence[int]
    ) -> tuple[dict[str, list[dict[str, Any]]], bool]:
        """The rows of each table; whether Freshet's cache proved all of them, and they are not too many to be kept."""
        rows: dict[str, list[dict[str, Any]]] = {}
        is_proved = True
        for table, columns in tables.items():
            found = rows[table] = []
            for page in reader.scan(self._keyspace, table, dict(zip(columns, key, strict=True)), limit=ROWS_MAX):
                found += page.rows
                is_proved &= page.served_from == "cache" and page.freshness == "fresh" and not page.page
        return rows, is_proved

    def _check(self, kind: str, floor: Floor) -> None:
        """Whether events name the object by just these columns. Looked at again after each void of its tables.

        Pages came from owners that have folded the voids; so what a front says of the tables then has them, too.
        """
        tables = self._objects[kind]
        voids = [floor.generation, *(floor.voids.get(table, "") for table in tables)]
        if self._checked.get(kind) == voids:
            return
        for table, columns in tables.items():
            described = self._client.describe(self._keyspace, table)
            kinds = {column.name: column.kind for column in described.columns}
            if described.primary_key[: len(columns)] != columns or any(
                kinds[column] not in EXACT_KINDS for column in columns
            ):
                raise BadRequest(
                    f"{kind} is not named by ({', '.join(columns)}) of {table}, whose key is "
                    f"({', '.join(described.primary_key)})",
                    hint="an object is named by leading columns of each primary key, which are whole numbers",
                    code="bad_object",
                )
        self._checked[kind] = voids
