"""Requests to the owners of partitions: a connection per owner and topic, and a second attempt if a partition moved.

An address that failed is tried again in the background, so that only the first reader pays for an owner that is away.
A partition whose owner has withdrawn, or was never followed by another, is still asked for at its last address: most
often the same process comes back there, and answers before it has announced itself. Each request names the topic that
was announced: a process that follows another one, of another installation, refuses it.

Followers (`stream.kafka.locations`) fold the same topic and answer by the same rules, so each answer proves itself
whoever gives it. `Owners.read` asks one when the owner is away or slow, or when the request lets any instance answer.
Fills go to the owner: `Owners.ask`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import structlog

from consumers.owner.client import Identity, OwnerClient
from consumers.owner.protocol import OwnerError
from serving.errors import ReadError
from serving.metrics import FrontMetrics
from serving.reads.demands import Consistency

Found = TypeVar("Found")


class Located(NamedTuple):
    """An owner's address as host:port, and the id of the topic that it follows; "" if that is unknown."""

    address: str
    topic_id: str = ""
    zone: str = ""


Locate = Callable[[str, int], Located | None]
"""(keyspace, partition) → where the owner is, or None. Must not block."""

LocateFollowers = Callable[[str, int], Sequence[Located]]
"""(keyspace, partition) → where its followers are. Must not block."""

HEDGE_S = 0.2
"""How long an owner may be silent, beyond the wait that the request allows, before a follower is asked beside it."""
REMEMBERED_S = 600.0
"""How long the last address of a partition is tried that nobody announces any more."""

_NOT_NOW = frozenset({"not_owner", "too_busy", "frame_too_large", "bad_request"})
"""Codes of a refusal that says nothing about the owner's next answer."""

_log = structlog.get_logger(__name__)


class OwnerAway(ReadError):
    """No owner answers for a partition. The source may answer instead."""

    def __init__(self, message: str) -> None:
        super().__init__("no_owner", message)


class OtherPartition(OwnerAway):
    """The owner says that the key is kept in another partition than the one that was asked."""


class Owners:
    """The owners of all partitions. Belongs to one event loop."""

    def __init__(
        self,
        locate: Locate,
        metrics: FrontMetrics,
        *,
        fixed: Mapping[tuple[str, int], str] | None = None,
        followers: LocateFollowers = lambda *_: (),
        zone: str = "",
        identity: Identity | None = None,
        request_timeout_s: float = 3.0,
        pause_s: float = 0.2,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """``fixed``: owners that are not announced. ``pause_s``: between two attempts to reach a failed address.

        ``zone``: where the front is; of the instances that may answer those of its zone are preferred.
        """
        self._locate = locate
        self._followers = followers
        self._followed: set[tuple[str, int]] = set()
        """Places whose followers may be connected."""
        self._zone = zone
        self._turn = 0
        self._slow: set[asyncio.Future[Any]] = set()
        """Requests whose answer is no longer awaited."""
        self._fixed = {place: Located(address) for place, address in (fixed or {}).items()}
        self._metrics = metrics
        self._identity = identity or Identity()
        self._request_timeout_s = request_timeout_s
        self._pause_s = pause_s
        self._clients: dict[Located, OwnerClient] = {}
        self._clock = clock
        self._away: dict[Located, float] = {}
        """Failed addresses, and when to try them again."""
        self._last: dict[tuple[str, int], tuple[Located, float]] = {}
        """(keyspace, partition) → its last announced owner, and when it was last announced."""
        self._probes: dict[Located, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def address_of(self, keyspace: str, partition: int) -> str | None:
        """host:port of the owner, as last announced; for `REMEMBERED_S` also one that was withdrawn."""
        found = self._find(keyspace, partition)
        return found.address if found is not None else None

    def _find(self, keyspace: str, partition: int) -> Located | None:
        place = (keyspace, partition)
        found = self._fixed.get(place) or self._locate(keyspace, partition)
        if found is not None:
            self._last[place] = found, self._clock()
            return found
        known = self._last.get(place)
        return known[0] if known is not None and self._clock() - known[1] < REMEMBERED_S else None

    async def ask(self, keyspace: str, partition: int, request: Callable[[OwnerClient], Awaitable[Found]]) -> Found:
        """The result of ``request`` to the partition's owner.

        Raises `OwnerAway` if there is no owner or it does not answer; `ReadError` ``bad_token``, ``missing_write_ids``
        ``bad_write_ids`` or ``bad_filter`` if the owner refuses the demand.
        """
        owner = self._find(keyspace, partition)
        if owner is None:
            raise OwnerAway(f"no process has announced that it owns {keyspace}/{partition}")
        try:
            return await self._ask_at(owner, request)
        except OwnerAway:
            moved = self._find(keyspace, partition)
            if moved is None or moved == owner:
                raise
            return await self._ask_at(moved, request)

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
        followers = self._followers(keyspace, partition) if consistency != "leader" else ()
        if not followers:
            return await self.ask(keyspace, partition, request)
        self._followed.add((keyspace, partition))
        left: Found | None = None
        if consistency == "any" and (chosen := self._choose(self._find(keyspace, partition), followers)) is not None:
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
        except OtherPartition:
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

    def _let_end(self, asking: asyncio.Future[Any]) -> None:
        """Lets a slow instance be asked to the end: if it times out, the next readers don't wait for it any more."""
        self._slow.add(asking)
        asking.add_done_callback(self._slow.discard)
        asking.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _choose(self, owner: Located | None, followers: Sequence[Located]) -> Located | None:
        """The follower whose turn it is among the owner and followers, those of this zone first; None: the owner's."""
        known = [*([owner] if owner is not None else []), *followers]
        near = [each for each in known if each.zone == self._zone] or known
        self._turn += 1
        chosen = near[self._turn % len(near)]
        return chosen if chosen != owner else None

    async def _of_followers(
        self, followers: Sequence[Located], request: Callable[[OwnerClient], Awaitable[Found]]
    ) -> Found | None:
        """What the first follower says that answers, those of this zone before others; None if none does."""
        for each in sorted(followers, key=lambda follower: follower.zone != self._zone):
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
        yet. ``request`` takes an owner and one of its partitions. Raises `OwnerAway` if no owner answers.
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

    async def _ask_at(self, owner: Located, request: Callable[[OwnerClient], Awaitable[Found]]) -> Found:
        if self._away and owner in self._away:
            self._probe(owner)
            raise OwnerAway(f"the owner at {owner.address} does not answer")
        try:
            return await request(self._client_of(owner))
        except OwnerError as error:
            raise self._read_error(owner, error) from error

    def _client_of(self, owner: Located) -> OwnerClient:
        client = self._clients.get(owner)
        if client is None:
            self._forget_unannounced()
            client = self._clients[owner] = OwnerClient(
                owner.address,
                topic_id=owner.topic_id,
                identity=self._identity,
                request_timeout_s=self._request_timeout_s,
            )
        return client

    def _probe(self, owner: Located) -> None:
        """Tries a failed address in the background, if it is time and nobody does."""
        if owner in self._probes or self._clock() < self._away[owner]:
            return

        async def run() -> None:
            try:
                await self._client_of(owner).greet()
                self._away.pop(owner, None)
            except OwnerError:
                self._away[owner] = self._clock() + self._pause_s
            finally:
                self._probes.pop(owner, None)

        self._probes[owner] = asyncio.get_running_loop().create_task(run())

    def _forget_unannounced(self) -> None:
        """Closes the connections to addresses that nobody announces any more, when a new one is opened."""
        now = self._clock()
        self._last = {place: known for place, known in self._last.items() if now - known[1] < REMEMBERED_S}
        used = {owner for owner, _ in self._last.values()} | set(self._fixed.values())
        used |= {each for place in self._followed for each in self._followers(*place)}
        for owner in self._clients.keys() - used:
            client = self._clients.pop(owner)
            self._away.pop(owner, None)
            closing = asyncio.get_running_loop().create_task(client.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def _read_error(self, owner: Located, error: OwnerError) -> ReadError:
        if error.code in ("bad_token", "missing_write_ids", "bad_write_ids", "bad_filter"):
            return ReadError(error.code, str(error), hint=error.hint)
        if error.code == "wrong_partition":
            return OtherPartition(str(error))
        self._metrics.owner_failures.inc()
        if error.code not in _NOT_NOW:
            self._away[owner] = self._clock() + self._pause_s
            _log.warning("owner away", address=owner.address, code=error.code, error=str(error))
        return OwnerAway(str(error))

    async def close(self) -> None:
        """Closes all connections."""
        for probe in list(self._probes.values()):
            probe.cancel()
        for asking in list(self._slow):
            asking.cancel()
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)


def _of_partition(
    request: Callable[[OwnerClient, int], Awaitable[Found]], partition: int, client: OwnerClient
) -> Awaitable[Found]:
    return request(client, partition)
