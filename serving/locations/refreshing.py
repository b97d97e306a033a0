"""Carries the location cache's refreshes out, and waits for them: the thin shell around `LocationCache`.

A batch asks the instances of its entries first, then the directory (`Directory`, the topic of announcements) for what
they could not prove. The directory also tells each change by itself: what it has read is taken in before each read, so
there is no event to lose. Nothing here runs while nothing is queued.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Final, NamedTuple, Protocol

import structlog

from serving.locations.cache import LocationCache, Report
from serving.locations.errors import LocationError, code_of
from serving.locations.peers import PeerAnswer, judge, whom_to_ask
from serving.locations.places import FOREVER, NEVER, Found, Key, Kind, Location, Origin, Replica, Version
from serving.locations.queues import WAITS_LONG_S, Batch
from tokens.errors import FreshetError

PEERS_S: Final = 0.5
"""How long the instances of a batch may take, and at most half of what the most impatient caller has left."""
DEADLINE_S: Final = 2.0
STEP_S: Final = 0.1
"""Between two questions of who waits for a leader."""
WAITS_S: Final = (0.005, 0.02, 0.1, 0.5, 1.0, WAITS_LONG_S, 10.0, float("inf"))
ROOT_S: Final = 8.0
"""How old the place of the topic of announcements may be."""
ROOT: Final = Key("", 0, Kind.LOCATIONS)

_log = structlog.get_logger(__name__)


class Directory(Protocol):
    """The topic of announcements, as this process follows it."""

    @property
    def change(self) -> int:
        """Grows with each change that was read. May be read at any time, without a lock."""

    def changed(self, after: int) -> tuple[int, Sequence[Location]]:
        """What changed after a ``change``, and the present one."""

    async def read(self, batch: Batch) -> Mapping[Key, Location]:
        """Locations as of the topic's present end; those that are nowhere are left out. Raises `FreshetError`."""


AskPeer = Callable[[Replica, str], Awaitable[Mapping[int, PeerAnswer]]]
"""(instance, keyspace) → what it says of the partitions that it holds. Raises `FreshetError`."""


class _Waiter(NamedTuple):
    asked_at: float
    newer_than: float
    deadline: float
    future: asyncio.Future[None]


class Locations:
    """Who answers for what. Reads don't wait, but for those that are coroutines. Belongs to one event loop."""

    def __init__(
        self,
        directory: Directory | None = None,
        *,
        fixed: Mapping[tuple[str, int], str] | None = None,
        zone: str = "",
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``directory``: None: only what is ``fixed`` is known, (keyspace, partition) → address.

        ``zone``: where this process is; instances there are asked first.
        """
        self.cache = LocationCache()
        self.zone = zone
        self.clock = clock
        self.ask_peer: AskPeer | None = None
        """Set by whoever has connections to instances."""
        self.front_of: Callable[[Key, str], str] = lambda _, __: ""
        """(partition, instance) → URL of the read API in the same process, "" if it has none or nobody told it."""
        self.waits_s: Counter[float] = Counter()
        """How many batches had a key that waited so long, by the bound of `WAITS_S` that is next."""
        self.waited_s = 0.0
        """All of these waits together."""
        self._directory = directory
        self._seen = 0
        self._waiters: dict[Key, list[_Waiter]] = {}
        self._worker: asyncio.Task[None] | None = None
        self._reading: set[asyncio.Task[None]] = set()
        self._nudge = asyncio.Event()
        """Set when there may be something to do for the worker."""
        self._closed = False
        self._distrusted = False
        for (keyspace, partition), address in (fixed or {}).items():
            location = Location(Key(keyspace, partition), Version(), Replica(address))
            self.cache.install(location, Origin.FIXED, FOREVER, clock())

    def follow(self) -> None:
        """Takes in what the directory has told since."""
        if self._distrusted:
            self._distrusted = False
            self.cache.erase(lambda key: self._is_of(key, Origin.SNAPSHOT))
        directory = self._directory
        if directory is not None and directory.change != self._seen:
            now = self.clock()
            self._seen, changed = directory.changed(self._seen)
            for location in changed:
                self.cache.install(location, Origin.PUSH, now, now)
            self.cache.sweep(now)

    def restore(self, locations: Sequence[Location]) -> None:
        """Takes what an earlier process knew. It is told at once, and refreshed when it is used."""
        for location in locations:
            self.cache.install(location, Origin.SNAPSHOT, NEVER, self.clock())

    def distrust_restored(self) -> None:
        """What was restored is of another installation. From any thread."""
        self._distrusted = True

    def leader(self, key: Key) -> Replica:
        """The leader, without waiting. Raises `LocationError` ``leader_unknown``, ``location_unknown``."""
        self.follow()
        try:
            return self.cache.nonblock_get_leader(key, self.clock())
        finally:
            self._work()

    def find(self, key: Key) -> Found:
        """What is known, without waiting. Raises `LocationError` ``location_unknown``."""
        self.follow()
        try:
            return self.cache.nonblock_get(key, self.clock())
        finally:
            self._work()

    def renew(self, key: Key) -> bool:
        """Has a key refreshed, without waiting; False if that is on its way. Raises `LocationError`."""
        try:
            return self.cache.nonblock_renew(key, self.clock())
        finally:
            self._work()

    def flush(self, is_meant: Callable[[Key], bool]) -> int:
        """Forgets what is meant, but for what the settings fix; what the directory has told of it is taken in anew.

        Returns how many entries.
        """
        self.follow()
        count = self.cache.erase(lambda key: is_meant(key) and not self._is_of(key, Origin.FIXED))
        self._seen = 0
        return count

    def _is_of(self, key: Key, origin: Origin) -> bool:
        entry = self.cache.entry(key)
        return entry is not None and entry.origin is origin

    def _known(self, key: Key) -> Location | None:
        """For an error: what it leaves."""
        entry = self.cache.entry(key)
        return entry.location if entry is not None else None

    def report(self, key: Key, met: Replica, version: Version, what: Report, told: Sequence[Location] = ()) -> None:
        """What a caller met where it was sent (`LocationCache.report`)."""
        self.follow()
        self.cache.report(key, met, version, what, self.clock(), told)
        self._work()

    async def get(
        self, key: Key, *, expire_renew_time: float = 0.0, auto_update: bool = True, deadline: float | None = None
    ) -> tuple[Found, bool]:
        """A location that was right after ``expire_renew_time`` (`FOREVER`: after this call), and whether it was there.

        ``auto_update``: whether it may be refreshed. ``deadline``: of the clock. Raises `LocationError`: with what is
        known as its ``stale``, if there is anything.
        """
        self.follow()
        now = self.clock()
        found = self.cache.lookup(key, expire_renew_time, now, may_renew=auto_update)
        if found is not None:
            if found.is_stale and auto_update:
                self.cache.renew_limited(key, now)
                self._work()
            return found, True
        if not auto_update or (self.cache.absences.holds(key, now) and expire_renew_time < FOREVER):
            raise LocationError("location_unknown", f"{key.keyspace}/{key.partition} is not known", self._known(key))
        if self.cache.limits.breaker.is_open(now):
            message = "those who know the locations have failed too often"
            raise LocationError("location_limited", message, self._known(key))
        await self._refreshed(key, min(expire_renew_time, now), now + DEADLINE_S if deadline is None else deadline)
        entry = self.cache.entry(key)
        if entry is None:
            raise LocationError(
                "location_unknown", f"nobody has announced that it holds {key.keyspace}/{key.partition}"
            )
        is_stale = entry.doubted_at <= self.clock()
        return Found(entry.location, is_stale, entry.origin, entry.renewed_at), False

    async def get_leader(self, key: Key, *, force_renew: bool = False, deadline: float | None = None) -> Replica:
        """The leader, if need be after a refresh. Raises `LocationError`, ``leader_unknown`` if there is none."""
        found, _ = await self.get(key, expire_renew_time=FOREVER if force_renew else 0.0, deadline=deadline)
        if found.location.leader is None or found.location.gone:
            raise LocationError("leader_unknown", f"{key.keyspace}/{key.partition} has no owner", found.location)
        return found.location.leader

    async def get_leader_until(self, key: Key, deadline: float) -> Replica:
        """The leader, asked for again every `STEP_S` until there is one. Raises the last `LocationError`."""
        while True:
            try:
                return await self.get_leader(key, deadline=deadline)
            except LocationError:
                if self.clock() + STEP_S >= deadline:
                    raise
            await asyncio.sleep(STEP_S)

    async def _refreshed(self, key: Key, newer_than: float, deadline: float) -> None:
        """Waits for a refresh of a key that began after ``newer_than``; several callers share one."""
        if self._closed:
            raise LocationError("locations_closed", "the front is stopping")
        now = self.clock()
        self.cache.nonblock_renew(key, now, newer_than)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(key, []).append(_Waiter(now, newer_than, deadline, future))
        self._work()
        try:
            await asyncio.wait_for(future, max(deadline - now, 0))
        except TimeoutError as error:
            message = f"{key.keyspace}/{key.partition} was not told in time"
            raise LocationError("location_timeout", message, self._known(key)) from error

    def _work(self) -> None:
        """Starts to carry out what is queued, unless that is under way or no loop runs."""
        self._nudge.set()
        idle = self._worker is None or self._worker.done()
        if not idle or self._closed or not len(self.cache.queues):
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._worker = loop.create_task(self._carry_out())

    async def _carry_out(self) -> None:
        """Begins batches as the limits allow, until nothing is queued."""
        while not self._closed:  # `asyncio.wait_for` loses a cancellation that comes with what it waited for
            now = self.clock()
            batch = self.cache.next_batch(now)
            if batch is not None:
                self.waits_s[next(bound for bound in WAITS_S if batch.waited_s <= bound)] += 1
                self.waited_s += batch.waited_s
                if batch.waited_s > WAITS_LONG_S:
                    _log.warning("locations waited long", keyspace=batch.keyspace, seconds=round(batch.waited_s, 1))
                reading = asyncio.create_task(self._read(batch))
                self._reading.add(reading)
                reading.add_done_callback(self._reading.discard)
                continue
            pause_s = self._pause_s(now)
            if pause_s is None and not self._reading:
                return
            self._nudge.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._nudge.wait(), pause_s)

    def _pause_s(self, now: float) -> float | None:
        """When there is something to do by itself, in seconds from ``now``; None: never."""
        rested_at = self.cache.queues.next_at()
        pauses = [max(rested_at - now, 0)] if rested_at is not None else []
        if len(self.cache.queues) and not self.cache.limits.is_busy:
            pauses.append(self.cache.limits.wait_s(now))
        return max(min(pauses), 0.001) if pauses else None

    async def _read(self, batch: Batch) -> None:
        """Reads a batch: from peers, then from the directory; then wakes who waits for it."""
        error: LocationError | None = None
        try:
            answers = await self._of_peers(batch)
            left = batch._replace(keys=tuple(key for key in batch.keys if key not in answers))
            if left.keys and self._directory is not None:
                self.cache.counts["topic_reads"] += 1
                found = await self._directory.read(left)
                self.follow()
                for key, location in found.items():
                    if location.is_held or self.cache.entry(key) is not None:  # else it was dropped, and is forgotten
                        answers[key] = location, Origin.TOPIC
            self.follow()
            self.cache.finish(batch, answers, self.clock())
        except FreshetError as failed:
            self.cache.fail(batch, failed.code, self.clock())
            _log.info("locations not refreshed", keyspace=batch.keyspace, code=failed.code, reason=str(failed))
            error = LocationError(code_of(failed.code), f"who could know it does not answer: {failed}")
        except BaseException:
            self.cache.fail(batch, "internal", self.clock())
            error = LocationError("location_timeout", "reading it failed; see the log")
            raise
        finally:
            self._wake(batch, error)
            self._nudge.set()

    def _wake(self, batch: Batch, error: LocationError | None) -> None:
        for key in batch.keys:
            waiting = self._waiters.pop(key, [])
            early = [each for each in waiting if batch.began_at <= each.newer_than and batch.began_at < each.asked_at]
            if early:
                self._waiters[key] = early
            for each in waiting:
                if each in early or each.future.done():
                    continue
                if error is None:
                    each.future.set_result(None)
                else:
                    each.future.set_exception(LocationError(error.code, str(error), self._known(key)))

    async def _of_peers(self, batch: Batch) -> dict[Key, tuple[Location, Origin]]:
        """What the instances of the entries prove."""
        if self.ask_peer is None:
            return {}
        asked = self._peers_of(batch)
        nearest = min((each.deadline for key in asked for each in self._waiters.get(key, ())), default=FOREVER)
        timeout_s = max(min(PEERS_S, (nearest - self.clock()) / 2), 0)
        servers = {each for _, peers in asked.values() for each in peers}
        said = await self._asked(self.ask_peer, servers, batch.keyspace, timeout_s)
        found: dict[Key, tuple[Location, Origin]] = {}
        for key, (known, peers) in asked.items():
            answers = {
                server.instance: said[server][key.partition]
                for server in peers
                if key.partition in said.get(server, ())
            }
            judged = judge(known, peers, answers)
            if judged.location is not None:
                found[key] = judged.location, Origin.PEERS
            else:
                self.cache.counts["peers_proved_nothing"] += 1
        return found

    def _peers_of(self, batch: Batch) -> dict[Key, tuple[Location, Sequence[Replica]]]:
        """Key → its entry's location, and the instances to ask about it; of keys for which any can be asked."""
        found: dict[Key, tuple[Location, Sequence[Replica]]] = {}
        for key in batch.keys:
            entry = self.cache.entry(key)
            if key.is_system or key in batch.topic_only or entry is None or entry.origin is Origin.FIXED:
                continue
            if peers := whom_to_ask(entry.location, self.zone, self.cache.down):
                found[key] = entry.location, peers
            else:
                self.cache.counts["peers_passed_over"] += 1
        return found

    async def _asked(
        self, ask: AskPeer, servers: Iterable[Replica], keyspace: str, timeout_s: float
    ) -> dict[Replica, Mapping[int, PeerAnswer]]:
        """What those say that answer in time."""
        said: dict[Replica, Mapping[int, PeerAnswer]] = {}

        async def one(server: Replica) -> None:
            try:
                said[server] = await ask(server, keyspace)
            except FreshetError:
                self.cache.counts["peers_failed"] += 1

        asking = [asyncio.create_task(one(each)) for each in servers]
        if asking:
            self.cache.counts["peers_asked"] += len(asking)
            _, late = await asyncio.wait(asking, timeout=timeout_s)
            for each in late:
                each.cancel()
        return said

    async def close(self) -> None:
        """Ends refreshes; whoever waits for one is told."""
        self._closed = True
        ending = [each for each in (self._worker, *self._reading) if each is not None]
        for each in ending:
            each.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for waiting in self._waiters.values():
            for waiter in waiting:
                if not waiter.future.done():
                    waiter.future.set_exception(LocationError("locations_closed", "the front is stopping"))
        self._waiters.clear()
