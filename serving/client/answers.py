"""The answers of the read API as types: what the front sends, the client reads, and /openapi.json describes."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

ServedFrom = Literal["cache", "source"]
FreshnessName = Literal["fresh", "stale", "unknown", "eventual"]

Image = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": ["object", "null"]})]
"""JSON as it came from the source: an object, or null."""


class RowAnswer(msgspec.Struct, omit_defaults=True):
    """One row; ``row`` is its image. ``token`` is the session's new vector: send it with the next read."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    found: bool
    row: Image
    event_token: str | None = None
    fresher: bool | None = None
    code: str = ""
    message: str = ""
    hint: str = ""


class TableAnswer(msgspec.Struct, omit_defaults=True):
    """One catalog table: its stored image, its id, and the write-id list that the image is good for."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    found: bool
    table_id: int
    write_ids: str | None
    table: Image
    code: str = ""
    message: str = ""
    hint: str = ""


class Problem(msgspec.Struct, omit_defaults=True):
    """Why there is no answer. ``token``, where given, replaces the session's."""

    code: str
    message: str
    hint: str
    token: str | None = None


class RowBatchAnswer(msgspec.Struct):
    """Rows in the order of the keys; one that failed is a Problem. The outer freshness is the weakest inside."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    rows: list[msgspec.Raw]


class TableBatchAnswer(msgspec.Struct):
    """Tables in the order of the request; an element that failed is a Problem."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    tables: list[msgspec.Raw]


class LocationAnswer(msgspec.Struct):
    """Who answers for a partition. ``address`` is host:port of the owner protocol."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    keyspace: str
    partition: int
    address: str
