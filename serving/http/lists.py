"""The routes that a transaction calls when it begins: past the cache, its lists and the ids of its tables.

GET is for tables that fit into a URL, POST for any number of them.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from consumers.owner.protocol import KEYS_MAX
from serving.client.answers import ListsAnswer
from serving.errors import ReadError
from serving.http.front import Front
from serving.http.query import TokenParameter, demand_of, json_parameter
from serving.http.responses import Response, answer_response
from serving.http.route import Route
from tokens import TokenError, ValidWriteIdList


class ListsParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Of a transaction that begins."""

    tables: Annotated[str, Meta(description='JSON array of tables, each as `"db.table"`.')]
    txn: Annotated[int, Meta(ge=0, description="The reader's own open transaction; 0: none.")] = 0
    txns: Annotated[str, Meta(description="The ValidTxnList that the transaction has already.")] = ""
    catalog: Annotated[str, Meta(description="The catalog's name.")] = "hive"
    token: TokenParameter = ""


class NoParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of the POST, which has none."""


class ListsBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """`ListsParameters` as a body."""

    tables: list[str]
    txn: Annotated[int, Meta(ge=0)] = 0
    txns: str = ""
    catalog: str = "hive"
    token: str | None = None


async def get_lists(front: Front, parameters: ListsParameters, _: None) -> Response:
    """One `ListsAnswer`."""
    return await _answer(front, parameters, _tables(parameters))


async def post_lists(front: Front, _: NoParameters, body: ListsBody) -> Response:
    """One `ListsAnswer`."""
    return await _answer(front, body, body.tables)


def _tables(parameters: ListsParameters) -> list[str]:
    tables: list[str] = json_parameter("tables", parameters.tables, list[str]) or []
    return tables


async def _answer(front: Front, wanted: ListsParameters | ListsBody, tables: list[str]) -> Response:
    names = _names(tables)
    if wanted.txns:
        _check_txns(wanted.txns)
    demand = demand_of(wanted.token, 0, front.limits)
    space = front.table_space(wanted.catalog)
    found = await front.tables.read_lists(space, names, wanted.txn, wanted.txns, demand)
    return answer_response(found, asked=len(names))


def _names(names: list[str]) -> list[str]:
    if len(names) > KEYS_MAX:
        raise ReadError("too_many_keys", f"{len(names)} tables, at most {KEYS_MAX}")
    for name in names:
        db, dot, table = name.partition(".")
        if not (db and dot and table):
            raise ReadError("bad_parameter", f"tables: {name!r} is not of the form db.table")
    return list(dict.fromkeys(name.lower() for name in names))


def _check_txns(text: str) -> None:
    """A ``ValidTxnList`` is a list without a table's name."""
    try:
        ValidWriteIdList.parse(f"t:{text}")
    except TokenError as error:
        raise ReadError("bad_parameter", f"txns: {error}", hint="send back `txns` of an answer") from error


_ERRORS: Final = (
    *("bad_token", "unknown_keyspace", "history_lost", "bad_parameter", "too_many_keys"),
    *("source_unreachable", "source_behind", "source_failed"),
)
LISTS: Final = (
    Route(
        method="GET",
        path="/v1/lists",
        handler=get_lists,
        parameters=ListsParameters,
        elements=lambda parameters, _: len(_tables(parameters)),
        answer=ListsAnswer,
        errors=_ERRORS,
        name="getLists",
        tag="catalog",
        summary="Begin a transaction",
        text="Never from the cache: the list of transactions that the reader may see, and of each table its write-id "
        "list and id. Send the latter two with every read of the transaction. Its own transaction counts as committed.",
        returns="The lists and ids.",
    ),
    Route(
        method="POST",
        path="/v1/lists",
        handler=post_lists,
        parameters=NoParameters,
        body=ListsBody,
        elements=lambda _, body: len(body.tables),
        answer=ListsAnswer,
        errors=_ERRORS,
        name="postLists",
        tag="catalog",
        summary="Begin a transaction over many tables",
        text="As GET, for tables that do not fit into a URL.",
        returns="The lists and ids.",
    ),
)
