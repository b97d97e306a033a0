"""Requests to the owners of partitions: one connection per owner, and a second attempt if a partition has moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import TypeVar

import structlog

from consumers.owner.client import OwnerClient
from consumers.owner.protocol import OwnerError
from serving.errors import ReadError
from serving.metrics import FrontMetrics

Found = TypeVar("Found")

Locate = Callable[[str, int], str | None]
"""(keyspace, partition) → the owner's address as host:port, or None. Must not block."""

_NOT_NOW = frozenset({"not_owner", "too_busy", "frame_too_large"})
"""Codes of a refusal that says nothing about the owner's next answer."""

_log = structlog.get_logger(__name__)


class OwnerAway(ReadError):
    """No owner answers for a partition. The source may answer instead."""

    def __init__(self, message: str) -> None:
        super().__init__("no_owner", message)


class Owners:
    """The owners of all partitions. Belongs to one event loop."""

    def __init__(
        self,
        locate: Locate,
        metrics: FrontMetrics,
        *,
        fixed: Mapping[tuple[str, int], str] | None = None,
        token: str = "",
        request_timeout_s: float = 3.0,
        pause_s: float = 0.5,
    ) -> None:
        """``fixed``: owners that are not announced. ``pause_s``: how long a failed address is not asked again."""
        self._locate = locate
        self._fixed = dict(fixed or {})
        self._metrics = metrics
        self._token = token
        self._request_timeout_s = request_timeout_s
        self._pause_s = pause_s
        self._clients: dict[str, OwnerClient] = {}
        self._away_until: dict[str, float] = {}

    def address_of(self, keyspace: str, partition: int) -> str | None:
        """host:port of the owner, as last announced."""
        return self._fixed.get((keyspace, partition)) or self._locate(keyspace, partition)

    async def ask(self, keyspace: str, partition: int, request: Callable[[OwnerClient], Awaitable[Found]]) -> Found:
        """The result of ``request`` to the partition's owner.

        Raises `OwnerAway` if there is no owner or it does not answer; `ReadError` ``bad_token``, ``missing_write_ids``
        or ``bad_write_ids`` if the owner refuses the demand.
        """
        address = self.address_of(keyspace, partition)
        if address is None:
            raise OwnerAway(f"no process has announced that it owns {keyspace}/{partition}")
        try:
            return await self._ask_at(address, request)
        except OwnerAway:
            moved = self.address_of(keyspace, partition)
            if moved is None or moved == address:
                raise
            return await self._ask_at(moved, request)

    async def ask_any(
        self,
        keyspace: str,
        partitions: Iterable[int],
        request: Callable[[OwnerClient, int], Awaitable[Found]],
        is_enough: Callable[[Found], bool],
    ) -> Found:
        """The first answer that ``is_enough``, else the last answer. Each owner is asked once.

        ``request`` takes an owner and one of its partitions. Raises `OwnerAway` if no owner answers.
        """
        asked: set[str | None] = set()
        answers: list[Found] = []
        away: OwnerAway | None = None
        for partition in partitions:
            address = self.address_of(keyspace, partition)
            if address in asked:
                continue
            asked.add(address)
            try:
                found = await self.ask(keyspace, partition, partial(_of_partition, request, partition))
            except OwnerAway as error:
                away = error
                continue
            if is_enough(found):
                return found
            answers.append(found)
        if answers:
            return answers[-1]
        raise away or OwnerAway(f"no process has announced that it owns a partition of {keyspace}")

    async def _ask_at(self, address: str, request: Callable[[OwnerClient], Awaitable[Found]]) -> Found:
        if self._away_until and self._away_until.get(address, 0.0) > monotonic():
            raise OwnerAway(f"the owner at {address} did not answer a moment ago")
        client = self._clients.get(address)
        if client is None:
            client = self._clients[address] = OwnerClient(
                address, token=self._token, request_timeout_s=self._request_timeout_s
            )
        try:
            found = await request(client)
        except OwnerError as error:
            raise self._read_error(address, error) from error
        if self._away_until:
            self._away_until.pop(address, None)
        return found

    def _read_error(self, address: str, error: OwnerError) -> ReadError:
        if error.code in ("bad_token", "missing_write_ids", "bad_write_ids"):
            return ReadError(error.code, str(error), hint=error.hint)
        self._metrics.owner_failures.inc()
        if error.code not in _NOT_NOW:
            self._away_until[address] = monotonic() + self._pause_s
            _log.warning("owner away", address=address, code=error.code, error=str(error))
        return OwnerAway(str(error))

    async def close(self) -> None:
        """Closes all connections."""
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)


def _of_partition(
    request: Callable[[OwnerClient, int], Awaitable[Found]], partition: int, client: OwnerClient
) -> Awaitable[Found]:
    return request(client, partition)
