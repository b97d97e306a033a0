"""Reads of roles and privileges: each at the source, since nothing tells when they change.

So no position proves them, and they are ``eventual`` at best: two metastores over a database and its replica may be at
the same event and yet have other grants. Nor is a read shared with a reader who came while it was under way: that one
may have granted something since it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypedDict, TypeVar

from serving.answers import AbsenceFields
from serving.client.answers import FreshnessName, ServedFrom
from serving.errors import HINTS, ReadError
from serving.metrics import FrontMetrics
from serving.reads.demands import ReadDemand
from serving.reads.owners import Owners
from serving.reads.proof import Proof
from serving.reads.spaces import TableSpace, epoch_of, learn_shards
from serving.reads.tables import POLL_S, asking
from serving.sources.privileges import PrivilegeSource, SourcePrivileges

Found = TypeVar("Found")
KIND: Final = "privileges"
"""Of these reads in metrics and traces."""


class Told(TypedDict):
    """The fields of an answer besides what was found, or is not there."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str


class PrivilegeReads:
    """Answers reads of roles and privileges. Belongs to one event loop."""

    def __init__(self, owners: Owners, metrics: FrontMetrics) -> None:
        self._owners = owners
        self._metrics = metrics

    async def read(
        self,
        space: TableSpace,
        demand: ReadDemand,
        ask: Callable[[PrivilegeSource, str], Awaitable[SourcePrivileges[Found]]],
    ) -> tuple[Told, AbsenceFields, list[Found]]:
        """What ``ask`` finds, at or past all that the session has seen of the log, which ``ask`` is told.

        A source behind it is waited for. Raises `ReadError`.
        """
        source, now = space.source, asyncio.get_running_loop().time
        deadline = now() + demand.max_wait_ms / 1000
        if not isinstance(source, PrivilegeSource):
            raise ReadError("source_unreachable", f"catalog {space.name} has no source here that tells roles")
        await learn_shards(self._owners, space, demand.vector, deadline)
        epoch = await epoch_of(self._owners, space, source.shard)
        proof = Proof(demand, source.shard, epoch, space.epochs.kin_of(source.shard, demand.vector))
        seen = demand.vector.get(source.shard)
        while True:
            async with asking(self._metrics, KIND, source.shard, "roles and privileges"):
                found = await ask(source, str(seen.position) if seen is not None else "")
            decision = proof.judge(found.position)
            if decision.may_be_served:
                break
            if decision.history_lost or now() >= deadline:
                raise proof.refusal(decision, found.position)
            await asyncio.sleep(POLL_S)
        self._metrics.answered(KIND, "source", "eventual")
        told: Told = {
            "served_from": "source",
            "freshness": "eventual",
            "why": f"read from the source at {found.position}; no event tells of roles and privileges",
            "token": proof.token_after(str(found.hi or "")),
        }
        if not found.missing:
            return told, {}, found.found
        message = f"catalog {space.name} has no {found.missing}"
        return told, {"code": "not_found", "message": message, "hint": HINTS["not_found"]}, found.found
