"""Which node a client asks first, and what it has yet to learn for that. No I/O: the clients carry requests.

A client names one front or several, its *homes*. Any front answers for all keys, so a request can always go there.
One that finds nodes (``route=True``) also learns how keys are shared among partitions and at which URLs the nodes that
hold these answer, and sends a read of a row there (docs/operating/nodes.md). It keeps the location cache of the fronts.
A node that does not answer is passed over for `AWAY_S`, and the request goes to the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from ..answers import DescriptionAnswer, NodeAnswer, RouteAnswer, RoutesAnswer
from ..session import Consistency
from ..wire import HttpRequest, Place, description_request, routes_request
from ._locations import Batch, Key, Location, LocationCache, LocationError, Origin, Replica, Report, Version
from .partitions import KeyColumns, Sharing, partition_of, sharing_of

ROUTES_S: Final = 10.0
"""Routes that are used are asked for again after so long: a partition that has moved costs a step until then."""
TABLES_S: Final = 60.0
"""So are descriptions of tables, and those that could not be told."""
TABLES_MAX: Final = 10_000
AWAY_S: Final = 2.0
"""A node that did not answer is tried again after this time."""
_OK: Final = 200
_NOT_FOUND: Final = 404

_routes = msgspec.json.Decoder(RoutesAnswer)
_description = msgspec.json.Decoder(DescriptionAnswer)


class Question(NamedTuple):
    """A request of the router's own, and what it is about: a table, or keys of which somebody wants to know."""

    request: HttpRequest
    about: Place | Batch


class Router:
    """What a client knows of nodes. Safe to share between threads."""

    def __init__(
        self,
        homes: Sequence[str],
        *,
        finds: bool = False,
        zone: str = "",
        consistency: Consistency = "bounded",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``homes``: URLs of fronts. ``finds``: whether nodes are looked for; those of ``zone`` are asked first."""
        self.homes = [each.rstrip("/") for each in homes]
        self.cache = LocationCache()
        self._finds, self._zone, self._clock = finds, zone, clock
        self._spreads = consistency == "any"
        self._turn = 0
        self._away: dict[str, float] = {}
        """URL → until when it is asked after the others."""
        self._sharing: dict[str, Sharing] = {}
        """By keyspace."""
        self._routed_at: dict[str, float] = {}
        self._tables: dict[tuple[str, str], tuple[float, KeyColumns | None]] = {}
        """(keyspace, table as it is called) → when it was asked for, and its key; None: nobody could tell."""
        self._lock = threading.Lock()

    def order(self, place: Place | None) -> list[str]:
        """URLs to try one after the other, at least one."""
        now = self._clock()
        with self._lock:
            found = self._of_place(place, now) if self._finds and place is not None else []
            others = [each.address for each in self.cache.named if each.address] if self._finds else []
            known = list(dict.fromkeys([*found, *self.homes, *others]))
            return sorted(known, key=lambda url: self._away.get(url, 0.0) > now)

    def _of_place(self, place: Place, now: float) -> list[str]:
        """The nodes that hold a row, the best one first; nothing if that is not known."""
        key = self._key_of(place)
        if key is None:
            return []
        self._revive(now)
        try:
            location = self.cache.nonblock_get(key, now).location
        except LocationError:
            return []
        known = [each for each in location.replicas if each.address]
        near = [each for each in known if each.zone == self._zone] or known
        if self._spreads and near:
            self._turn += 1
            near = near[self._turn % len(near) :] + near[: self._turn % len(near)]
            known = [*near, *(each for each in known if each not in near)]
        return [each.address for each in known if each not in self.cache.down]

    def _key_of(self, place: Place) -> Key | None:
        sharing, (_, table) = self._sharing.get(place.keyspace), self._tables.get(place[:2], (0.0, None))
        if sharing is None or table is None:
            return None
        partition = partition_of(sharing, table, place.values)
        if partition is None:
            return None
        return Key(place.keyspace, partition)

    def _revive(self, now: float) -> None:
        for replica, since in list(self.cache.down.items()):
            if now - since >= AWAY_S:
                self.cache.back(replica)

    def question(self, place: Place | None) -> Question | None:
        """What to ask any front before a request for ``place``; whoever is given it calls `learn`. None: nothing."""
        if not self._finds or place is None:
            return None
        now, table = self._clock(), place[:2]
        with self._lock:
            at, key = self._tables.get(table, (now - TABLES_S, None))
            if now - at >= TABLES_S:
                if len(self._tables) >= TABLES_MAX:
                    self._tables.clear()
                self._tables[table] = now, key
                return Question(description_request(*table), place)
            any_of_all, routed_at = Key(place.keyspace, 0), self._routed_at.get(place.keyspace, now - ROUTES_S)
            if now - routed_at >= ROUTES_S and not self.cache.absences.holds(any_of_all, now):
                self.cache.renew_limited(any_of_all, now)
            self.cache.sweep(now)
            batch = self.cache.next_batch(now)
            return None if batch is None else Question(routes_request(batch.keyspace), batch)

    def learn(self, question: Question, status: int, body: bytes) -> None:
        """Takes in the answer to a question. ``status`` 0: there was none. Raises nothing."""
        now, about = self._clock(), question.about
        with self._lock:
            if isinstance(about, Place):
                self._learn_table(about, status, body, now)
            else:
                self._learn_routes(about, status, body, now)

    def _learn_table(self, place: Place, status: int, body: bytes, now: float) -> None:
        try:
            found = _description.decode(body) if status == _OK else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = None
        if found is not None:
            kinds = {column.name: column.kind for column in found.columns}
            key = KeyColumns(found.table, tuple(kinds.get(name, "") for name in found.primary_key), found.prefix)
            self._tables[place[:2]] = now, key

    def _learn_routes(self, batch: Batch, status: int, body: bytes, now: float) -> None:
        try:
            found = _routes.decode(body) if status == _OK else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = None
        if found is None and status != _NOT_FOUND:  # 404: of an older front, or there is no such keyspace
            self.cache.fail(batch, "owner_unreachable", now)
            self.cache.absences.add(Key(batch.keyspace, 0), now)  # so that it is not asked before each request
            return
        routes = [] if found is None else found.routes
        locations = {Key(batch.keyspace, each.partition): self._location(batch.keyspace, each) for each in routes}
        self.cache.finish(batch, {key: (each, Origin.TOPIC) for key, each in locations.items()}, now)
        for key, location in locations.items():
            if key not in batch.keys:
                self.cache.install(location, Origin.TOPIC, batch.began_at, now)
        if found is not None:
            self._routed_at[batch.keyspace] = now
            sharing = sharing_of(found.layout)
            if sharing is not None:
                self._sharing[batch.keyspace] = sharing

    def _location(self, keyspace: str, route: RouteAnswer) -> Location:
        leader = self._replica(route.leader) if route.leader is not None else None
        followers = tuple(self._replica(each) for each in route.followers if each.front)
        version = Version(route.epoch, route.term, leader.instance if leader is not None else "")
        return Location(Key(keyspace, route.partition), version, leader, followers, leader is None)

    def _replica(self, node: NodeAnswer) -> Replica:
        """A front that is announced without TLS is not asked by a client that uses TLS: it would be shown the token."""
        secured = self.homes[0].startswith("https:")
        is_asked = node.front.startswith("https:" if secured else "http") and _is_url(node.front)
        return Replica(node.front.rstrip("/") if is_asked else "", "", node.zone, node.instance)

    def failed(self, url: str, place: Place | None) -> None:
        """A front did not answer."""
        now = self._clock()
        with self._lock:
            self._away[url] = now + AWAY_S
            key = self._key_of(place) if self._finds and place is not None else None
            for replica in [each for each in self.cache.named if each.address == url]:
                if key is not None:
                    self.cache.report(key, replica, Version(), Report.UNREACHABLE, now)
                else:
                    self.cache.down.setdefault(replica, now)


def _is_url(text: str) -> bool:
    """Whether a connection can be tried there. Whoever may announce a node can write anything."""
    try:
        found = urlsplit(text)
        (found.hostname or "").encode("idna")  # as a look-up of the name does
        return text.isprintable() and bool(found.hostname) and found.port != 0  # the port also raises what it is not
    except ValueError:
        return False
