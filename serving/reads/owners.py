"""Requests to the owners of partitions: a connection per owner and topic, and a second attempt if a partition moved.

Where they are is the location cache's to know (`serving.locations`); what they answer, or that they don't, is reported
to it. An address that failed is tried again in the background, so that only the first reader pays for an owner that is
away. A partition whose owner has withdrawn, or was never followed by another, is still asked for at its last address:
most often the same process comes back there, and answers before it has announced itself. Each request names the topic
that was announced: a process that follows another one, of another installation, refuses it.

Followers (`stream.kafka.locations`) fold the same topic and answer by the same rules, so each answer proves itself
whoever gives it. `Owners.read` asks one when the owner is away or slow, or when the request lets any instance answer.
Fills go to the owner: `Owners.ask`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import structlog

from consumers.owner.client import Identity, OwnerClient
from consumers.owner.protocol import OwnerError, PartitionRequest, RangeRows, Rows, Standing
from serving.errors import ReadError
from serving.locations.cache import Report
from serving.locations.errors import LocationError
from serving.locations.peers import PeerAnswer
from serving.locations.places import Key, Location, Replica, Version
from serving.locations.refreshing import Locations
from serving.metrics import FrontMetrics
from serving.reads.demands import Consistency

Found = TypeVar("Found")
Answered = TypeVar("Answered", Rows, RangeRows)

HEDGE_S = 0.2
"""How long an owner may be silent, beyond the wait that the request allows, before a follower is asked beside it."""
_NOT_NOW = frozenset({"not_owner", "too_busy", "frame_too_large", "bad_request", "forbidden"})
"""Codes of a refusal that says nothing about the owner's next answer."""

_log = structlog.get_logger(__name__)


class OwnerAway(ReadError):
    """No owner answers for a partition. The source may answer instead."""

    def __init__(self, message: str) -> None:
        super().__init__("no_owner", message)


class OtherPartition(OwnerAway):
    """The owner says that the key is kept in another partition than the one that was asked."""


class AnswerTooLarge(OwnerAway):
    """The owner has more to say at once than fits in an answer: it may be asked for less."""


class Owners:
    """The owners of all partitions. Belongs to one event loop."""

    def __init__(
        self,
        locations: Locations,
        metrics: FrontMetrics,
        *,
        identity: Identity | None = None,
        request_timeout_s: float = 3.0,
        pause_s: float = 0.2,
    ) -> None:
        """``pause_s``: between two attempts to reach a failed address."""
        self._locations = locations
        locations.ask_peer = self._ask_peer
        self._turn = 0
        self._slow: set[asyncio.Future[Any]] = set()
        """Requests whose answer is no longer awaited."""
        self._metrics = metrics
        self._identity = identity or Identity()
        self._request_timeout_s = request_timeout_s
        self._pause_s = pause_s
        self._clients: dict[Replica, OwnerClient] = {}
        self._clock = locations.clock
        self._retry_at: dict[Replica, float] = {}
        """When to try a failed address again."""
        self._probes: dict[Replica, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def address_of(self, keyspace: str, partition: int) -> str | None:
        """host:port of the owner, as last announced; for `REMEMBERED_S` also one that was withdrawn."""
        location = self._find(keyspace, partition)
        return location.leader.address if location is not None and location.leader is not None else None

    def _find(self, keyspace: str, partition: int) -> Location | None:
        try:
            return self._locations.find(Key(keyspace, partition)).location
        except LocationError:
            return None

    async def ask(self, keyspace: str, partition: int, request: Callable[[OwnerClient], Awaitable[Found]]) -> Found:
        """The result of ``request`` to the partition's owner.

        Raises `OwnerAway` if there is no owner or it does not answer; `ReadError` ``bad_token``, ``missing_write_ids``
        ``bad_write_ids`` or ``bad_filter`` if the owner refuses the demand.
        """
        key = Key(keyspace, partition)
        owner = self._leader(key)
        try:
            return await self._ask_at(owner, request, key)
        except OwnerAway as away:
            try:
                moved = self._leader(key)
            except OwnerAway:
                raise away from None
            if moved == owner:
                raise
            return await self._ask_at(moved, request, key)

    def _leader(self, key: Key) -> Replica:
        """Raises `OwnerAway`; one that does not answer is tried again in the background."""
        try:
            return self._locations.leader(key)
        except LocationError as unknown:
            location = self._find(key.keyspace, key.partition)
            if location is not None and location.leader in self._locations.cache.down:
                self._probe(location.leader)
            raise OwnerAway(str(unknown)) from unknown

    async def read(
        self,
        keyspace: str,
        partition: int,
        request: Callable[[OwnerClient], Awaitable[Found]],
        is_enough: Callable[[Found], bool] = lambda _: True,
        *,
        consistency: Consistency = "bounded",
        patience_s: float | None = None,
    ) -> Found:
        """As `ask`; where ``consistency`` allows it, a follower may answer (`ReadDemand`).

        A follower's answer that is not ``is_enough`` counts only if the owner does not answer. ``patience_s``: the
        owner's silence after which a follower is asked beside it; None: only once the owner has failed.
        """
        location = self._find(keyspace, partition) if consistency != "leader" else None
        if location is None or not location.followers:
            return await self.ask(keyspace, partition, request)
        followers = location.followers
        left: Found | None = None
        if consistency == "any" and (chosen := self._choose(location)) is not None:
            left = await self._of_followers([chosen], request)
            if left is not None and is_enough(left):
                return left
        asking = asyncio.ensure_future(self.ask(keyspace, partition, request))
        beside: asyncio.Future[Found | None] | None = None
        try:
            if patience_s is not None:
                await asyncio.wait({asking}, timeout=patience_s + HEDGE_S)
                if not asking.done():
                    beside = asyncio.ensure_future(self._of_followers(followers, request))
                    await asyncio.wait({asking, beside}, return_when=asyncio.FIRST_COMPLETED)
                    if not asking.done() and (found := beside.result()) is not None and is_enough(found):
                        self._let_end(asking)
                        return found
            return await asking
        except (OtherPartition, AnswerTooLarge):
            raise
        except OwnerAway:
            if left is None:
                left = await (beside if beside is not None else self._of_followers(followers, request))
            if left is None:
                raise
            return left
        except asyncio.CancelledError:
            asking.cancel()
            raise
        finally:
            if beside is not None:
                self._let_end(beside)

    async def read_each(
        self,
        keyspace: str,
        requests: Sequence[PartitionRequest],
        kind: type[Answered],
        is_enough: Callable[[Answered], bool],
        *,
        consistency: Consistency,
        patience_s: float,
        wholly: bool = False,
    ) -> list[Answered | OwnerAway]:
        """As `read` of each request, or why nobody answers it. Those to one owner go together.

        One to a partition with followers goes alone: they may have to answer it. ``wholly``: one that nobody answers
        makes the others useless, so its `OwnerAway` is raised.
        """
        found: dict[int, Answered | OwnerAway] = {}
        together: dict[Replica, list[int]] = defaultdict(list)
        alone: list[int] = []

        def is_away(place: int, away: OwnerAway) -> None:
            if wholly:
                raise away
            found[place] = away

        async def ask(owner: Replica, places: list[int]) -> None:
            some = [requests[place] for place in places]
            answers: list[Answered | OwnerError] = []
            with suppress(OwnerAway):
                answers = await self._ask_at(
                    owner, lambda client: client.answers(some, kind), Key(keyspace, some[0].partition)
                )
            for place, answer in zip(places, answers, strict=False):  # none if it is away
                if not isinstance(answer, OwnerError):
                    found[place] = answer
                elif answer.code != "not_owner":
                    error = self._read_error(owner, answer, Key(keyspace, requests[place].partition))
                    if not isinstance(error, OwnerAway):
                        raise error
                    is_away(place, error)

        async def read(place: int) -> None:
            request = requests[place]
            try:
                answer: Answered = await self.read(
                    keyspace,
                    request.partition,
                    lambda client: client.answer(request, kind),
                    is_enough,
                    consistency=consistency,
                    patience_s=patience_s,
                )
            except OwnerAway as away:
                is_away(place, away)
            else:
                found[place] = answer

        for place, request in enumerate(requests):
            location = self._find(keyspace, request.partition)
            if len(requests) == 1 or (location is not None and location.followers and consistency != "leader"):
                alone.append(place)
                continue
            owner = location.leader if location is not None else None
            try:
                if owner is None or owner in self._locations.cache.down:
                    owner = self._leader(Key(keyspace, request.partition))  # it says what is wrong
                together[owner].append(place)
            except OwnerAway as away:
                is_away(place, away)
        await _all([*(ask(*each) for each in together.items()), *(read(place) for place in alone)])
        await _all([read(place) for place in range(len(requests)) if place not in found])
        return [found[place] for place in range(len(requests))]

    def _let_end(self, asking: asyncio.Future[Any]) -> None:
        """Lets a slow instance be asked to the end: if it times out, the next readers don't wait for it any more."""
        self._slow.add(asking)
        asking.add_done_callback(self._slow.discard)
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _choose(self, location: Location) -> Replica | None:
        """The follower whose turn it is among all instances, those of this zone first; None: the owner's."""
        known = location.replicas
        near = [each for each in known if each.zone == self._locations.zone] or known
        self._turn += 1
        chosen = near[self._turn % len(near)]
        return chosen if chosen != location.leader else None

    async def _of_followers(
        self, followers: Sequence[Replica], request: Callable[[OwnerClient], Awaitable[Found]]
    ) -> Found | None:
        """What the first follower says that answers, those of this zone before others; None if none does."""
        for each in sorted(followers, key=lambda follower: follower.zone != self._locations.zone):
            try:
                found = await self._ask_at(each, request)
            except ReadError:  # also a refusal: it may be of another version, so only the owner's counts
                continue
            self._metrics.follower_answers.inc()
            return found
        return None

    async def ask_any(
        self,
        keyspace: str,
        partitions: Iterable[int],
        request: Callable[[OwnerClient, int], Awaitable[Found]],
        is_enough: Callable[[Found], bool],
        *,
        each_partition: bool = False,
    ) -> Found:
        """The first answer that ``is_enough``, else the last answer.

        Each owner is asked once, or for ``each_partition`` of its own, where one may know what another has not folded
        yet. ``request`` takes an owner and one of its partitions. Raises `OwnerAway` if no owner answers, and
        `AnswerTooLarge` if one has too much to say: the others would have it say that again.
        """
        asked: set[str | None] = set()
        answers: list[Found] = []
        away: OwnerAway | None = None
        for partition in partitions:
            address = self.address_of(keyspace, partition)
            if address in asked:
                continue
            if not each_partition:
                asked.add(address)
            try:
                found = await self.read(keyspace, partition, partial(_of_partition, request, partition))
            except AnswerTooLarge:
                raise
            except OwnerAway as error:
                asked.add(address)
                away = error
                continue
            if is_enough(found):
                return found
            answers.append(found)
        if answers:
            return answers[-1]
        raise away or OwnerAway(f"no process has announced that it owns a partition of {keyspace}")

    async def _ask_at(
        self, owner: Replica, request: Callable[[OwnerClient], Awaitable[Found]], key: Key | None = None
    ) -> Found:
        """``key``: of which ``owner`` is the leader; None: it is a follower."""
        if owner in self._locations.cache.down:
            self._probe(owner)
            raise OwnerAway(f"the owner at {owner.address} does not answer")
        try:
            return await request(self._client_of(owner))
        except OwnerError as error:
            raise self._read_error(owner, error, key) from error

    def _client_of(self, owner: Replica) -> OwnerClient:
        client = self._clients.get(owner)
        if client is None:
            self._forget_unknown()
            client = self._clients[owner] = OwnerClient(
                owner.address,
                topic_id=owner.topic_id,
                identity=self._identity,
                request_timeout_s=self._request_timeout_s,
            )
        return client

    def _probe(self, owner: Replica) -> None:
        """Tries a failed address in the background, if it is time and nobody does."""
        if owner in self._probes or self._clock() < self._retry_at.get(owner, 0.0):
            return

        async def run() -> None:
            try:
                await self._client_of(owner).greet()
                self._locations.cache.back(owner)
            except OwnerError:
                self._retry_at[owner] = self._clock() + self._pause_s
            finally:
                self._probes.pop(owner, None)

        self._probes[owner] = asyncio.get_running_loop().create_task(run())

    def _forget_unknown(self) -> None:
        """Closes the connections to instances that no location names any more, when a new one is opened."""
        self._locations.cache.sweep(self._clock())
        for owner in self._clients.keys() - self._locations.cache.named.keys():
            client = self._clients.pop(owner)
            self._retry_at.pop(owner, None)
            closing = asyncio.get_running_loop().create_task(client.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _read_error(self, owner: Replica, error: OwnerError, key: Key | None) -> ReadError:
        if error.code in ("bad_token", "missing_write_ids", "bad_write_ids", "bad_filter"):
            return ReadError(error.code, str(error), hint=error.hint)
        if error.code == "wrong_partition":
            return OtherPartition(str(error))
        if error.code == "frame_too_large":
            return AnswerTooLarge(str(error))
        self._metrics.owner_failures.inc()
        if error.code not in _NOT_NOW:
            self._retry_at[owner] = self._clock() + self._pause_s
            _log.warning("owner away", address=owner.address, code=error.code, error=str(error))
        if key is not None:
            self._report(key, owner, error)
        elif error.code not in _NOT_NOW:
            self._locations.cache.lost(owner, self._clock())
        return OwnerAway(str(error))

    def _report(self, key: Key, owner: Replica, error: OwnerError) -> None:
        """Tells the location cache what was met at the leader of a partition."""
        location = self._find(key.keyspace, key.partition)
        version = location.version if location is not None else Version()
        if error.code not in _NOT_NOW:
            what, told = Report.UNREACHABLE, []
        elif error.code == "not_owner":
            moved = error.moved
            told = [hinted(key, moved)] if moved is not None else []
            what = Report.MOVED if told else Report.NOT_LEADER
            if moved is not None and moved.instance == owner.instance:
                what = Report.EPOCH_STALE
        else:
            what, told = Report.SLOW, []
        self._locations.report(key, owner, version, what, told)

    async def _ask_peer(self, server: Replica, keyspace: str) -> Mapping[int, PeerAnswer]:
        """See `serving.locations.refreshing.AskPeer`."""
        status = await self._client_of(server).status(keyspace)
        return {
            each.partition: PeerAnswer(
                status.instance,
                each.standing.instance == status.instance,
                each.standing.instance,
                each.standing.epoch,
                each.standing.term,
                frozenset(each.standing.members),
            )
            for each in status.partitions
            if each.keyspace == keyspace and each.standing is not None
        }

    async def close(self) -> None:
        """Closes all connections."""
        await self._locations.close()
        for probe in list(self._probes.values()):
            probe.cancel()
        for asking in list(self._slow):
            asking.cancel()
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)


def hinted(key: Key, moved: Standing) -> Location:
    """The location that an instance names which does not hold it."""
    leader = Replica(moved.address, moved.topic_id, moved.zone, moved.instance)
    return Location(key, Version(moved.epoch, moved.term, moved.instance), leader)


def _of_partition(
    request: Callable[[OwnerClient, int], Awaitable[Found]], partition: int, client: OwnerClient
) -> Awaitable[Found]:
    return request(client, partition)


async def _all(asking: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Awaits them side by side; one alone needs no task."""
    if len(asking) == 1:
        await asking[0]
    elif asking:
        await asyncio.gather(*asking)
