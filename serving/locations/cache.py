"""The location cache: who answers for what, kept by every front, and what to refresh when. Pure.

Reads never wait: they tell what is known, and have it refreshed if it is old. The one who waits is
`serving.locations.refreshing`, which carries batches out. What is known is replaced by what is newer only
(`serving.locations.places.supersedes`), and kept when a source fails or knows nothing: an address that may be wrong
costs one request, no address costs a read of the source of truth. Each answer proves itself whoever gives it, so a
wrong location never makes a stale answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Final

from .absent import Absences
from .errors import LocationError, code_of
from .limits import Limits
from .places import (
    EXPIRES_S,
    FOREVER,
    NEVER,
    Entry,
    Found,
    Key,
    Location,
    Origin,
    Priority,
    Replica,
    Version,
    expires_at,
    supersedes,
)
from .queues import Batch, Queues

REMEMBERED_S: Final = 600.0
"""How long an entry is told after its leader has withdrawn or failed and no other was named."""
FORCED_S: Final = 600.0
"""After so long without the topic's word an entry is read there, even if its peers confirm it."""
RENEWED_EVERY_S: Final = 1.0
"""At most so often does a failing leader have its entry refreshed."""
SWEEP_S: Final = 10.0
"""How often `LocationCache.sweep` looks for what may be forgotten."""
ENTRIES_MAX: Final = 2_000_000
AGES_S: Final = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, EXPIRES_S, FOREVER)


class Report(StrEnum):
    """What a caller met at the instance that it was sent to."""

    NOT_LEADER = "not_leader"
    """It answers, but does not hold the entity."""
    MOVED = "moved"
    """It names who does."""
    EPOCH_STALE = "epoch_stale"
    """It follows another topic than was announced."""
    UNREACHABLE = "unreachable"
    SLOW = "slow"


class LocationCache:
    """Entries, absences, servers that are down, and the queues. Belongs to one thread."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Events by name, for metrics."""
        self.ages = [0] * len(AGES_S)
        """How many times a location was told that was confirmed so long ago, by the bound of `AGES_S` that is next."""
        self.queues = Queues()
        self.limits = Limits()
        self.absences = Absences()
        self.down: dict[Replica, float] = {}
        """Instances that did not answer, and since when. Their entries are not touched."""
        self.named: Counter[Replica] = Counter()
        """How many entries name an instance."""
        self._doubted: dict[Key, None] = {}
        """Keys whose entry is in doubt; some are not any more."""
        self._swept_at = NEVER
        self._system: dict[Key, Entry] = {}
        self._user: dict[Key, Entry] = {}
        self._system_leaders: dict[Key, tuple[Replica, float, float]] = {}
        self._user_leaders: dict[Key, tuple[Replica, float, float]] = {}
        """Leader, until when it is told without a look at the entry, and when it was confirmed. Exact: a key has a
        place of its own."""

    def __len__(self) -> int:
        return len(self._system) + len(self._user)

    def entry(self, key: Key) -> Entry | None:
        """What is kept of a key."""
        return (self._system if key.is_system else self._user).get(key)

    def entries(self) -> Iterable[Entry]:
        """All entries, the system's first."""
        yield from self._system.values()
        yield from self._user.values()

    def lookup(self, key: Key, expire_renew_time: float, now: float, *, may_renew: bool = True) -> Found | None:
        """The entry if it was renewed after ``expire_renew_time`` and is not in doubt; None: it must be refreshed.

        ``may_renew``: whether this may have it read in the topic.
        """
        _check(key)
        entry = self.entry(key)
        if entry is None or entry.renewed_at <= expire_renew_time or entry.doubted_at <= now:
            self.counts["miss"] += 1
            return None
        self.counts["hit"] += 1
        self._note_age(entry.renewed_at, now)
        if may_renew:
            self._force_topic(entry, now)
        return self._found(entry, now)

    def nonblock_get(self, key: Key, now: float) -> Found:
        """What is known; an old entry is told, and refreshed once. Raises `LocationError` ``location_unknown``."""
        _check(key)
        entry = self.entry(key)
        if entry is not None and now - entry.doubted_at >= REMEMBERED_S:
            self._forget_leader(entry)
        if entry is None or not entry.location.replicas:
            self.counts["nonblock_miss"] += 1
            if not self.absences.holds(key, now):
                self.renew_limited(key, now)
            raise LocationError("location_unknown", f"nobody has announced that it holds {_name(key)}")
        self.counts["nonblock_hit"] += 1
        self._note_age(entry.renewed_at, now)
        found = self._found(entry, now)
        if found.is_stale:
            self.counts["stale_served"] += 1
            self.renew_limited(key, now)
        else:
            self._force_topic(entry, now)
        return found

    def nonblock_get_leader(self, key: Key, now: float) -> Replica:
        """The leader. Raises `LocationError` ``leader_unknown`` if none is known, or it is down."""
        known = (self._system_leaders if key.is_system else self._user_leaders).get(key)
        if known is not None and now < known[1]:
            leader = known[0]
            self.ages[bisect_left(AGES_S, now - known[2])] += 1  # as `_note_age`: a look-up takes a microsecond
        else:
            leader = self._leader_of(self.nonblock_get(key, now).location)
        if self.down and leader in self.down:
            self.counts["leader_down"] += 1
            self.renew_limited(key, now)  # the one that met it was sent for another key
            raise LocationError("leader_unknown", f"the owner at {leader.address} does not answer")
        return leader

    def _note_age(self, renewed_at: float, now: float) -> None:
        """What the settings fix counts as new, what an earlier process kept as old."""
        self.ages[bisect_left(AGES_S, now - renewed_at)] += 1

    def _leader_of(self, location: Location) -> Replica:
        if location.leader is None:
            raise LocationError("leader_unknown", f"no process has announced that it owns {_name(location.key)}")
        return location.leader

    def nonblock_renew(self, key: Key, now: float, newer_than: float = FOREVER) -> bool:
        """Has a key refreshed; False if that is on its way. ``newer_than``: what began by then is not enough.

        Raises `LocationError` ``bad_location``, ``location_queue_full``.
        """
        _check(key)
        return self._renew(key, now, newer_than)

    def renew_limited(self, key: Key, now: float) -> bool:
        """As `nonblock_renew`, at most once in `RENEWED_EVERY_S`; whether that refused it. Raises nothing."""
        entry = self.entry(key)
        if entry is not None:
            if now - entry.told_at < RENEWED_EVERY_S:
                self.counts["renew_limited"] += 1
                return True
            entry.told_at = now
        with suppress(LocationError):  # the queue is full: what is known is told all the same
            self._renew(key, now)
        return False

    def _renew(self, key: Key, now: float, newer_than: float = NEVER, *, topic_only: bool = False) -> bool:
        entry = self.entry(key)
        failing = not key.is_system and entry is not None and self._is_in_doubt(entry, now)
        priority = Priority.FAILING if failing else key.priority
        try:
            is_new = self.queues.put(key, priority, now, newer_than=newer_than, topic_only=topic_only)
        except LocationError:
            self.counts["queue_full"] += 1
            raise
        self.counts["renew_queued" if is_new else "renew_ignored"] += 1
        return is_new

    def _is_in_doubt(self, entry: Entry, now: float) -> bool:
        leader = entry.location.leader
        return entry.doubted_at <= now or leader is None or leader in self.down

    def _found(self, entry: Entry, now: float) -> Found:
        is_old = now >= expires_at(entry)
        return Found(entry.location, is_old or entry.doubted_at <= now, entry.origin, entry.renewed_at)

    def _force_topic(self, entry: Entry, now: float) -> None:
        """Peers don't see every follower, so the topic is read at intervals, a few keys a second."""
        if now - entry.topic_at < FORCED_S or entry.origin is Origin.FIXED:
            return
        if self.limits.may_force(entry.location.key.keyspace, now):
            self.counts["forced"] += 1
            with suppress(LocationError):  # the queue is full: as in `renew_limited`
                self._renew(entry.location.key, now, topic_only=True)

    def install(self, location: Location, origin: Origin, at: float, now: float) -> bool:
        """Keeps what ``origin`` said as of ``at``; False if it is older than what is known.

        A hint or the peers' word that no announcement followed is given up once its own leader refuses it or does not
        answer: then the topic is believed again, although it says less.
        """
        key = location.key
        entry = self.entry(key)
        by_topic = origin in (Origin.TOPIC, Origin.PUSH, Origin.FIXED)
        if entry is not None and entry.origin is Origin.FIXED:
            return False
        if entry is not None and not supersedes(location, origin, entry.location):
            is_refused = self._is_in_doubt(entry, now) and entry.origin in (Origin.HINT, Origin.PEERS, Origin.SNAPSHOT)
            if not (by_topic and is_refused):
                self.counts["backward"] += 1
                return False
        same = entry is not None and entry.location.version == location.version
        if location.leader is None or location.gone:  # the last one may come back at its address, if one is known here
            kept = entry.location.leader if entry is not None else None
            leader = (location.leader or kept) if kept is not None else None
            location = location._replace(leader=leader, gone=True)
        if origin is Origin.HINT and entry is not None:  # who tells it names the leader only
            followers = tuple(each for each in entry.location.followers if each.instance != location.version.instance)
            location = location._replace(followers=followers)
        location = location._replace(anew=False)  # it is so when it is told, once
        doubted_at = FOREVER
        if location.gone:
            doubted_at = entry.doubted_at if entry is not None and entry.doubted_at <= now else now
        elif same and entry is not None and not by_topic and origin is not Origin.PEERS:
            doubted_at = entry.doubted_at
        before = (entry.renewed_at, entry.topic_at) if entry is not None else (NEVER, NEVER)
        topic_at = at if by_topic else before[1]
        told_at = entry.told_at if entry is not None and entry.location.leader == location.leader else NEVER
        made = Entry(location, origin, max(at, before[0]), max(topic_at, before[1]), doubted_at, told_at)
        self._keep(key, made)
        self.absences.clear(key)
        self.counts[f"installed_{origin}"] += 1
        return True

    def _keep(self, key: Key, entry: Entry) -> None:
        entries, leaders = (self._system, self._system_leaders) if key.is_system else (self._user, self._user_leaders)
        before, entries[key] = entries.get(key), entry
        self.named.update(entry.location.replicas)  # first: who is down, and named here alone, stays so
        if before is not None:
            self._unname(before.location)
        if entry.doubted_at < FOREVER:
            self._doubted[key] = None
        if entry.location.leader is not None and entry.doubted_at == FOREVER:
            until = min(expires_at(entry), entry.topic_at + FORCED_S)
            leaders[key] = entry.location.leader, until, entry.renewed_at
        else:
            leaders.pop(key, None)
        if len(entries) > ENTRIES_MAX:
            self._remove(next(iter(entries)))

    def _remove(self, key: Key) -> None:
        entries, leaders = (self._system, self._system_leaders) if key.is_system else (self._user, self._user_leaders)
        self._unname(entries.pop(key).location)
        leaders.pop(key, None)

    def _unname(self, location: Location) -> None:
        for each in location.replicas:
            self.named[each] -= 1
            if not self.named[each]:
                del self.named[each]
                self.down.pop(each, None)

    def _forget_leader(self, entry: Entry) -> None:
        """Its address is told no more. The version stays, so that nothing older comes back."""
        if entry.location.leader is not None:
            before, entry.location = entry.location, entry.location._replace(leader=None, gone=True)
            self.named.update(entry.location.replicas)  # first, as in `_keep`
            self._unname(before)

    def sweep(self, now: float) -> None:
        """Forgets the leaders that have been in doubt for `REMEMBERED_S`, and keyspaces that have nobody left.

        Looks at most once in `SWEEP_S`.
        """
        if not self._doubted or now - self._swept_at < SWEEP_S:
            return
        self._swept_at = now
        ended: set[str] = set()
        for key in list(self._doubted):
            entry = self.entry(key)
            if entry is None or entry.doubted_at == FOREVER:
                del self._doubted[key]
            elif now - entry.doubted_at >= REMEMBERED_S:
                del self._doubted[key]
                self._forget_leader(entry)
                ended.add(key.keyspace)
        if ended:
            self._drop_ended(ended)

    def _drop_ended(self, keyspaces: set[str]) -> None:
        """Erases those of the ``keyspaces`` of which no instance holds any partition: they were dropped."""
        held = {key.keyspace for key, entry in self._user.items() if entry.location.replicas}
        dropped = keyspaces - held - {""}
        if dropped:
            self.counts["keyspace_dropped"] += len(dropped)
            self.erase(lambda key: key.keyspace in dropped)
            for each in dropped:
                self.limits.forget(each)

    def next_batch(self, now: float) -> Batch | None:
        """The next batch to read, if the limits let one begin. It ends with `finish` or `fail`."""
        if not len(self.queues) and self.queues.next_at() is None:
            return None
        if not self.limits.may_begin(now):
            return None
        batch = self.queues.take(now, lambda keyspace: self.limits.take(keyspace, now))
        if batch is not None:
            self.limits.under_way += 1
            self.limits.breaker.begin()
        return batch

    def finish(self, batch: Batch, answers: Mapping[Key, tuple[Location, Origin]], now: float) -> None:
        """What was found for a batch. A key without an answer does not exist; what is known of it is kept, in doubt."""
        self._end(batch, now, good=True)
        for key in batch.keys:
            answer = answers.get(key)
            if answer is not None:
                self.install(*answer, batch.began_at, now)
            elif (entry := self.entry(key)) is None:
                self.absences.add(key, now)
                self.counts["absent"] += 1
            else:
                self._doubt(entry, now)
                entry.renewed_at = max(entry.renewed_at, batch.began_at)

    def fail(self, batch: Batch, code: str, now: float) -> None:
        """Nobody could be asked. All that is known is kept. ``code``: of the error, for metrics."""
        self._end(batch, now, good=False)
        self.counts[code_of(code)] += 1

    def _end(self, batch: Batch, now: float, *, good: bool) -> None:
        self.limits.under_way -= 1
        self.limits.breaker.end(now, good=good)
        self.queues.done(batch.keys, now)

    def _doubt(self, entry: Entry, now: float) -> None:
        if entry.origin is Origin.FIXED:
            return
        entry.doubted_at = min(entry.doubted_at, now)
        key = entry.location.key
        self._doubted[key] = None
        (self._system_leaders if key.is_system else self._user_leaders).pop(key, None)

    def report(
        self, key: Key, met: Replica, token: Version, what: Report, now: float, told: Iterable[Location] = ()
    ) -> bool:
        """What a caller met at ``met``, where the entry of version ``token`` had sent it; ``told``: what it said.

        A hint that is newer is kept, without a refresh. Else the entry is doubted if it is still the one that misled.
        Returns whether what is known of ``key`` has changed.
        """
        self.counts[f"report_{what}"] += 1
        if what is Report.SLOW:  # one slow request says nothing of a server
            return False
        if what is Report.UNREACHABLE:
            self.lost(met, now)
            self.renew_limited(key, now)
            return True
        hinted = [self.install(each, Origin.HINT, now, now) for each in told]
        entry = self.entry(key)
        if entry is None or entry.location.leader != met or entry.location.version != token:
            return any(hinted)  # somebody has learnt better since
        self._doubt(entry, now)
        self.renew_limited(key, now)
        return True

    def lost(self, server: Replica, now: float) -> None:
        """An instance does not answer."""
        if server in self.named:  # else nobody would ever take it off again
            self.down.setdefault(server, now)

    def back(self, server: Replica) -> None:
        """An instance that was down answers again."""
        self.down.pop(server, None)

    def erase(self, is_meant: Callable[[Key], bool]) -> int:
        """Forgets the entries and absences that are meant, and refreshes them no more. Returns how many entries."""
        before = len(self)
        for entries in (self._system, self._user):
            for key in [each for each in entries if is_meant(each)]:
                self._remove(key)
        self.absences.drop(is_meant)
        self.queues.drop(is_meant)
        return before - len(self)


def _check(key: Key) -> None:
    if not key.is_valid:
        raise LocationError("bad_location", f"{_name(key)} can't exist")


def _name(key: Key) -> str:
    return f"{key.keyspace}/{key.partition}" + ("" if not key.is_system else f" ({key.kind})")
