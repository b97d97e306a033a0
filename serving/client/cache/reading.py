"""Reads through the application's cache: from its store if an entry is proved to be as fresh as the session demands."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .._tokens import Vector
from ..errors import BadRequest, HistoryLost
from .entries import (
    Entry,
    Floor,
    begins_later,
    check_names,
    covers,
    decode,
    encode,
    floor_name,
    is_key_of,
    is_live,
    merged,
    of_keyspace,
    parsed,
    row_name,
    told_of,
)
from .stores import EntryTooLarge, Found, Store, checked

if TYPE_CHECKING:
    from ..answers import Row
    from ..client import FreshetClient, Session

LEASE_S: Final = 10
"""How long a reader has to fill an entry before another one may."""
_RELEASED_S: Final = 1


class CachedRow(NamedTuple):
    """A row, or that there is none. ``from_store``: Freshet was not asked."""

    value: Mapping[str, Any] | None
    from_store: bool


class Seen(NamedTuple):
    """The floor, and the entry that was read with it or after it."""

    floor: Floor | None
    entry: Entry | None
    found: Found | None


class Leased(NamedTuple):
    """An entry that is this reader's to fill, and the floor that was read after it was."""

    floor: Floor
    entry: Entry
    found: Found | None

    @property
    def reached(self) -> Vector:
        """At or past all that was ever invalidated."""
        return parsed(self.floor.reached)

    def wanted(self, demanded: Vector) -> str:
        """What a value must have in it to be kept: all that was invalidated, and what the session has seen."""
        return str(merged(self.entry.proven, merged(self.floor.reached, demanded)))


class Entries:
    """The entries of a keyspace in a store, as readers use and fill them. ``tables``: those that an entry is of.

    ``what``: the table or the `followed_kind` that an invalidator must follow for the entry to be kept.
    """

    def __init__(self, store: Store, keyspace: str) -> None:
        self._store, self._floor = checked(store), floor_name(keyspace)

    def see(self, name: str) -> Seen:
        """The floor and an entry."""
        found = self._store.get([self._floor, name])
        floor, entry = found.get(self._floor), found.get(name)
        return Seen(decode(floor.raw, Floor) if floor else None, decode(entry.raw, Entry) if entry else None, entry)

    def may_be_used(self, name: str, seen: Seen, what: str, tables: Sequence[str], demanded: Vector) -> bool:
        """Whether the entry's value is proved to have all that is demanded in it."""
        floor, entry = seen.floor, seen.entry
        if floor is None or entry is None or not is_live(entry, floor, tables):
            return False
        told = told_of(floor, what)
        if told is None:
            return False
        known, own = merged(entry.proven, told), parsed(entry.token)
        if begins_later(Vector({shard: each for shard, each in known.items() if shard in own}), demanded):
            return False
        if covers(parsed(entry.proven), demanded):
            return True
        if not covers(known, demanded):
            return False
        # What is told has been dealt with before the floor said so. So the entry is read after it.
        return self._store.get([name]).get(name) == seen.found

    def lease(self, name: str, seen: Seen, what: str, tables: Sequence[str]) -> Leased | None:
        """The entry as this reader's, and a floor that was read after it was. None: it is not to be filled."""
        floor, entry, found = seen
        if floor is None or told_of(floor, what) is None:
            return None  # nobody would invalidate it
        if entry is not None and entry.generation == floor.generation and entry.lease:
            return None
        if entry is not None and is_live(entry, floor, tables):
            return None  # good for others
        proven = entry.proven if entry is not None and entry.value is None else ""
        lease = Entry(floor.generation, proven, lease=uuid.uuid4().hex)
        if not self._store.swap(name, encode(lease), found, LEASE_S):
            return None
        floor, entry, found = self.see(name)
        if floor is None or entry is None or floor.generation != lease.generation or entry.lease != lease.lease:
            return None
        return Leased(floor, entry, found)

    def fill(self, name: str, lease: Leased, wanted: str, value: dict[str, Any] | None, token: str, ttl_s: int) -> None:
        """Ends the lease, if it is still there: with a value that has all up to ``wanted`` in it, or None."""
        generation = lease.floor.generation
        if value is not None:
            with suppress(EntryTooLarge):  # the reader has its row all the same
                self._store.swap(name, encode(Entry(generation, wanted, value, token)), lease.found, ttl_s)
                return
        ended = Entry(generation, lease.entry.proven)
        self._store.swap(name, encode(ended), lease.found, 0 if ended.proven else _RELEASED_S)


class RowCache:
    """Reads rows of ``tables`` (``db.table`` → its primary key's columns) of a keyspace. Safe to share between threads.

    ``ttl_s``: when a value goes at the latest, from memcached after thirty days; 0: only when it is invalidated.
    """

    def __init__(
        self,
        client: FreshetClient,
        store: Store,
        keyspace: str,
        tables: Mapping[str, Sequence[str]],
        *,
        ttl_s: int = 3600,
    ) -> None:
        self._client, self._keyspace = client, keyspace
        self._entries = Entries(store, keyspace)
        check_names(tables)
        self._tables, self._ttl_s = dict(tables), ttl_s

    def get_row(self, session: Session, table: str, *pk: object) -> CachedRow:
        """The row, at least as fresh as all that ``session`` has seen.

        Raises `ClientError`, and what the store raises.
        """
        if table not in self._tables:
            raise BadRequest(
                f"{table} is none of the tables of this cache", hint="name it as db.table", code="unknown_table"
            )
        is_in_doubt = session.is_in_doubt(self._keyspace)  # before the token, which has all doubts that ended by then
        vector, newer = Vector.parse_known(session.token)
        if newer or is_in_doubt:  # it can't be compared here; a front can
            return _answer(session.get_row(self._keyspace, table, *pk))
        demanded = of_keyspace(vector, self._keyspace)
        name = row_name(self._keyspace, table, pk)
        seen = self._entries.see(name)
        if self._entries.may_be_used(name, seen, table, [table], demanded):
            assert seen.entry is not None
            session.adopt(seen.entry.token)
            return CachedRow(seen.entry.value, from_store=True)
        lease = self._entries.lease(name, seen, table, [table])
        if lease is None:
            return _answer(session.get_row(self._keyspace, table, *pk))
        return self._fill(session, name, table, pk, lease, demanded)

    def _fill(
        self, session: Session, name: str, table: str, pk: Sequence[object], lease: Leased, demanded: Vector
    ) -> CachedRow:
        """Reads with a demand past all that was ever invalidated, and keeps the row if nothing came between.

        Only rows from Freshet's cache are kept: of tables that are read through each time the stream tells nothing.
        """
        reached, wanted = lease.reached, lease.wanted(demanded)
        try:
            row = self._client.session(wanted).get_row(self._keyspace, table, *pk, include_event_token=True)
        except HistoryLost:  # it may be the floor's alone; if it is the session's, the session must adopt what is left
            return _answer(session.get_row(self._keyspace, table, *pk))
        token = row.event_token or row.token
        place, newer = Vector.parse_known(token)
        is_proved = row.served_from == "cache" and row.freshness == "fresh" and bool(row.event_token) and not newer
        is_of_shards = set(place) <= set(reached)
        is_kept = is_proved and is_of_shards and row.value and is_key_of(pk, self._tables[table], row.value)
        self._entries.fill(name, lease, wanted, row.value if is_kept else None, token, self._ttl_s)
        if newer or begins_later(place, demanded):
            return _answer(session.get_row(self._keyspace, table, *pk))  # it must be told itself what it has lost
        session.adopt(token)
        return _answer(row)


def _answer(row: Row) -> CachedRow:
    return CachedRow(row.value if row.found else None, from_store=False)
