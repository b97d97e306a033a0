"""The routes of the status API, and of the page."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from serving.errors import ReadError
from serving.http.front import Front
from serving.http.query import KeyParameter, RowTableParameter, TokenParameter
from serving.http.responses import Response, plain_response
from serving.http.route import Route
from serving.http.status.answers import (
    BackfillsAnswer,
    BackfillState,
    FrontStatus,
    KeyspaceStatus,
    KeyStatus,
    StatusHistory,
)
from serving.http.status.inspector import AskedKey, look_up
from serving.http.status.key_changes import Back
from serving.http.status.page import FILES, OLDEST_SHOWN, file_response, is_filled, key_response, page_response
from serving.http.status.rings import Hours

PARTITIONS_SHOWN_MAX: Final = 64
BACKFILLS_S: Final = 1.0
"""So long the page waits for Kafka: it is looked at when that is away, too."""


class KeyParameters(msgspec.Struct):
    """What the form of the key's page says."""

    keyspace: str = ""
    table: str = ""
    key: str = ""
    token: str = ""
    back: Back = ""


class PageParameters(msgspec.Struct):
    """How the page is shown. ``refresh``: whether it is fetched again by itself; ``hours``: how far back it looks."""

    refresh: bool = True
    hours: Hours = 1


class KeyStatusParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of one key. ``pk`` is still percent-encoded."""

    keyspace: str
    table: RowTableParameter
    pk: KeyParameter
    token: TokenParameter = ""
    back: Annotated[
        Back,
        Meta(
            description="Its changes, too, which are read from Kafka: those of the hour (`1`) or day (`24`) before the "
            "entry's own and all since, or `all` that the topic has."
        ),
    ] = ""


class BackfillsParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of the backfills of a keyspace."""

    keyspace: str


class HistoryParameters(msgspec.Struct):
    """Of the history."""

    hours: Annotated[
        Hours, Meta(description="How far back; the points are ten seconds, one or five minutes apart.")
    ] = 1
    partitions: Annotated[
        int, Meta(ge=0, le=PARTITIONS_SHOWN_MAX, description="Of so many partitions of each keyspace the age is told.")
    ] = 0


def _names(front: Front) -> list[str]:
    return [*front.row_spaces, *front.table_spaces]


async def _status(front: Front) -> FrontStatus:
    missing, look = await front.readiness.missing_by_keyspace(), await front.watch.look()
    return FrontStatus(
        [
            KeyspaceStatus(name, not missing[name], missing[name], [p for p in look.partitions if p.keyspace == name])
            for name in _names(front)
        ],
        look.at,
    )


async def get_status(front: Front, _: None, __: None) -> Response:
    """One `FrontStatus`."""
    return plain_response(await _status(front))


async def get_history(front: Front, parameters: HistoryParameters, _: None) -> Response:
    """One `StatusHistory`."""
    return plain_response(front.watch.history(_names(front), parameters.hours, parameters.partitions))


async def get_backfills(front: Front, parameters: BackfillsParameters, _: None) -> Response:
    """One `BackfillsAnswer`."""
    front.row_space(parameters.keyspace)
    return plain_response(BackfillsAnswer(await _backfills(front, parameters.keyspace)))


async def _backfills(front: Front, keyspace: str) -> list[BackfillState]:
    if front.backfills is None:
        raise ReadError("stream_unavailable", "this front reads no Kafka")
    look = await front.watch.look()
    shards = {shard.shard for each in look.partitions if each.keyspace == keyspace for shard in each.shards}
    return await front.backfills.of(keyspace, shards)


async def get_key_status(front: Front, parameters: KeyStatusParameters, _: None) -> Response:
    """One `KeyStatus`."""
    asked = AskedKey(parameters.keyspace, parameters.table, parameters.pk, parameters.token, parameters.back)
    return plain_response(await look_up(front, asked))


async def get_page(front: Front, parameters: PageParameters, _: None) -> Response:
    """The page."""
    history = front.watch.history(_names(front), parameters.hours, OLDEST_SHOWN)
    status = await _status(front)
    backfills = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(BACKFILLS_S):
            for name in (each.name for each in status.keyspaces if is_filled(each)):
                with suppress(ReadError):
                    backfills[name] = await _backfills(front, name)
    return page_response(status, history, backfills, refresh=parameters.refresh)


async def get_key(front: Front, parameters: KeyParameters, _: None) -> Response:
    """The page of one key; without a key its form."""
    asked = AskedKey(*msgspec.structs.astuple(parameters))
    if not asked.table or not asked.key:
        return key_response(list(front.row_spaces), asked, None)
    try:
        return key_response(list(front.row_spaces), asked, await look_up(front, asked))
    except ReadError as problem:
        return key_response(list(front.row_spaces), asked, None, problem)


STATUS: Final[tuple[Route[Any, Any], ...]] = (
    Route(
        method="GET",
        path="/v1/status",
        handler=get_status,
        answer=FrontStatus,
        name="getStatus",
        tag="operations",
        summary="Which keyspaces are ready, how fresh is each partition, and what do the others lack?",
        text="Always 200. A keyspace is ready as in `/readyz`; one does not hinder another. `missing` has a line for "
        "each partition that is not ready; `partitions` has all of them as their owners tell, the worst first.",
        returns="Each keyspace of the front.",
    ),
    Route(
        method="GET",
        path="/v1/status/history",
        handler=get_history,
        parameters=HistoryParameters,
        answer=StatusHistory,
        name="getStatusHistory",
        tag="operations",
        summary="Freshness and answers of the last hour, six hours or day",
        text="The oldest first. A point tells the worst of what was seen each ten seconds in its time, and how many "
        "answers there were. It is kept in memory, and begins anew with the process; for longer use `/metrics`.",
        returns="The last hours.",
    ),
    Route(
        method="GET",
        path="/v1/status/backfills/{keyspace}",
        handler=get_backfills,
        parameters=BackfillsParameters,
        answer=BackfillsAnswer,
        errors=("unknown_keyspace", "stream_unavailable"),
        name="getBackfills",
        tag="operations",
        summary="How far are the tables that are read from their beginning?",
        text="Those that have begun and are not complete, as their sources last told: rows read, out of about how "
        "many, and the time left. `freshet backfill status` shows the same, with the tables that wait for their turn.",
        returns="The tables.",
    ),
    Route(
        method="GET",
        path="/v1/status/rows/{keyspace}/{table}/{pk:raw}",
        handler=get_key_status,
        parameters=KeyStatusParameters,
        answer=KeyStatus,
        errors=(
            *("bad_token", "bad_key", "unknown_keyspace", "unknown_table", "no_owner"),
            *("source_unreachable", "source_failed"),
        ),
        name="getKeyStatus",
        tag="operations",
        summary="What does the owner hold of one key, and may it be served to a reader with this token?",
        text="Nothing is waited for, and no row is read from a source. A row that may not be served is not told.",
        returns="The entry, the decision and its reason.",
    ),
)
"""Described by /openapi.json."""


def _file(name: str) -> Route[None, None]:
    async def get(_: Front, __: None, ___: None) -> Response:
        return file_response(name)

    return Route(
        method="GET",
        path=f"/files/{name}",
        handler=get,
        name=f"get {name}",
        tag="page",
        summary="A file of the page.",
        text="",
        returns="The file.",
    )


PAGE: Final[tuple[Route[Any, Any], ...]] = (
    Route(
        method="GET",
        path="/",
        handler=get_page,
        parameters=PageParameters,
        name="getPage",
        tag="page",
        summary="The page for people.",
        text="",
        returns="HTML.",
    ),
    Route(
        method="GET",
        path="/key",
        handler=get_key,
        parameters=KeyParameters,
        name="getKey",
        tag="page",
        summary="One key, as its owner holds it.",
        text="",
        returns="HTML.",
    ),
    *(_file(name) for name in FILES),
)
"""For browsers: not described."""
