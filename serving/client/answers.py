"""The contract of the read API: the types of its answers, as /openapi.json describes them, and its error codes."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

ServedFrom = Literal["cache", "source"]
FreshnessName = Literal["fresh", "stale", "unknown", "eventual"]

Image = TypeVar("Image")
"""A row or a table: `msgspec.Raw` in the front, which embeds it as it is; `Columns` in the client, which decodes it."""

Element = TypeVar("Element")
"""One answer of a batch, or a `Problem`; `msgspec.Raw` in the client, which decodes each by itself."""

Columns: TypeAlias = dict[str, Any] | None
_OBJECT_OR_NULL = msgspec.Meta(extra_json_schema={"type": ["object", "null"]})

STATUS_OF_CODE: dict[str, int] = {
    "bad_request": 400,
    "bad_location": 400,
    "bad_token": 400,
    "bad_key": 400,
    "no_index": 400,
    "sort_too_large": 400,
    "bad_page": 400,
    "bad_parameter": 400,
    "bad_body": 400,
    "missing_write_ids": 400,
    "bad_write_ids": 400,
    "bad_filter": 400,
    "bad_checkpoint": 400,
    "unknown_column": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "unknown_path": 404,
    "location_unknown": 404,
    "not_served": 404,
    "file_not_found": 404,
    "unknown_keyspace": 404,
    "unknown_table": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "history_lost": 409,
    "fill_lost": 409,
    "table_id_changed": 409,
    "page_expired": 409,
    "letter_refused": 409,
    "file_changed": 409,
    "checkpoint_lost": 409,
    "stream_too_old": 410,
    "precondition_failed": 412,
    "body_too_large": 413,
    "too_many_keys": 413,
    "request_too_long": 414,
    "bad_range": 416,
    "too_many_requests": 429,
    "rate_limited": 429,
    "location_queue_full": 429,
    "location_limited": 429,
    "too_many_streams": 429,
    "head_too_large": 431,
    "internal": 500,
    "not_ready": 503,
    "timed_out": 503,
    "stopping": 503,
    "no_owner": 503,
    "leader_unknown": 503,
    "location_timeout": 503,
    "locations_closed": 503,
    "stream_unavailable": 503,
    "letters_unavailable": 503,
    "source_unreachable": 503,
    "source_behind": 503,
    "source_failed": 503,
}
"""Every error code of the API → its HTTP status."""


class RowAnswer(msgspec.Struct, Generic[Image], omit_defaults=True, frozen=True):
    """One row; ``row`` is its image. ``token`` is the session's new vector: send it with the next read."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    found: bool
    value: Annotated[Image, _OBJECT_OR_NULL] = msgspec.field(name="row")
    event_token: str | None = None
    fresher: bool | None = None
    code: str = ""
    message: str = ""
    hint: str = ""


class KeptAnswer(msgspec.Struct, omit_defaults=True, frozen=True):
    """A row that was given is the row at ``token``. ``kept``: the cache has it, and answers with it from now on."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    kept: bool


class RangeAnswer(msgspec.Struct, Generic[Image], omit_defaults=True, frozen=True):
    """Rows that some columns name, in the order that was asked for, all as they were at one position.

    ``count``: their number, where only that is asked for. ``page``: send it to get the rows that follow; "" after the
    last one. ``moved``: this page and those before it are not of one position.
    """

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    rows: list[Image]
    count: int | None = None
    page: str = ""
    moved: bool = False


class TableAnswer(msgspec.Struct, Generic[Image], omit_defaults=True, frozen=True):
    """One catalog table: its stored image, its id, and the write-id list that the image is valid for."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    found: bool
    table_id: int
    write_ids: str | None
    value: Annotated[Image, _OBJECT_OR_NULL] = msgspec.field(name="table")
    code: str = ""
    message: str = ""
    hint: str = ""


class ObjectsAnswer(msgspec.Struct, Generic[Image], omit_defaults=True, frozen=True):
    """Catalog objects: partitions, databases, functions, constraints or column statistics.

    ``names``: of each in parts, the values of a partition; ``objects``: their images in the same order, null where
    there is no such object. ``count``: how many of them exist. ``next_page``: there are more; send it as ``page``.
    ``stats_compliant``: of statistics, whether each holds for the request's list, as Hive's isStatsCompliant. None: the
    request has no list, or nobody could tell; such statistics must not be taken for ones that hold.
    """

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    names: list[list[str]]
    objects: list[Annotated[Image, _OBJECT_OR_NULL]]
    count: int
    table_id: int | None = None
    write_ids: str | None = None
    stats_compliant: list[bool] | None = None
    next_page: str = ""


class TableList(msgspec.Struct, frozen=True, omit_defaults=True):
    """A table as a transaction finds it. ``write_ids``: null of a table that is not transactional.

    ``table_id``: 0 if there is no such table.
    """

    name: str
    table_id: int
    write_ids: str | None = None


class DescribedColumn(msgspec.Struct, frozen=True):
    """A column of a table, and the kind of its canonical values. ``sql_type``: as the source has it; "": unknown."""

    name: str
    kind: str
    sql_type: str = ""


class DescriptionAnswer(msgspec.Struct, frozen=True):
    """What a front knows of a table of rows. ``reason``: why it is not ``cacheable``.

    ``prefix``: how many leading columns of the key choose a row's partition; 0: all.
    """

    table: str
    columns: list[DescribedColumn]
    primary_key: list[str]
    cacheable: bool
    reason: str = ""
    prefix: int = 0


class ListsAnswer(msgspec.Struct, frozen=True):
    """What a transaction needs to read: its list of transactions, and of each table that it named its list and id."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    txns: str
    tables: list[TableList]


class Row(RowAnswer[Columns], omit_defaults=True, frozen=True):
    """A row, or its absence. ``value``: column → canonical value (docs/start/http-api.md), None if not found."""


class Page(RangeAnswer[dict[str, Any]], omit_defaults=True, frozen=True):
    """Rows, each as column → canonical value (docs/start/http-api.md)."""


class Table(TableAnswer[Columns], omit_defaults=True, frozen=True):
    """A catalog table as stored; ``write_ids`` is the list that ``value`` is valid for."""


class Objects(ObjectsAnswer[Columns], omit_defaults=True, frozen=True):
    """Catalog objects as stored."""


class Problem(msgspec.Struct, omit_defaults=True):
    """An error, as RFC 9457 has it and with a ``code``. ``token``, if present, replaces the session's token."""

    code: str
    message: str
    hint: str
    token: str | None = None
    type: str = ""
    title: str = ""
    status: int = 0
    detail: str = ""


class RowBatchAnswer(msgspec.Struct, Generic[Element]):
    """Rows in the order of the keys; one that failed is a Problem. ``freshness`` is the weakest of the rows'."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    rows: list[Element]


class TableBatchAnswer(msgspec.Struct, Generic[Element]):
    """Tables in the order of the request; an element that failed is a Problem."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    tables: list[Element]


class ShardPlace(msgspec.Struct, frozen=True):
    """How far a shard has come: the ``epoch`` of its history, and the position folded last; "" if it is unknown."""

    epoch: int
    position: str


class LocationAnswer(msgspec.Struct):
    """The owner of a partition. ``address`` is the host:port of its owner protocol.

    ``shards``: the epochs are the highest that the owner or the request's token names; while the owner is away, those
    that the front has heard of.
    """

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    keyspace: str
    partition: int
    address: str
    shards: dict[str, ShardPlace] = {}


class PlaceAnswer(msgspec.Struct):
    """Who answers for an entity: a partition, a topic's partition, a keyspace, or an instance by itself.

    ``address``: of the owner, or of the broker; "" if nobody is known. ``epoch`` and ``term`` order what is said of one
    entity. ``why``: who said it, how long ago, and what is doubtful about it.
    """

    keyspace: str
    partition: int
    entity: str
    address: str
    epoch: int = 0
    term: int = 0
    instance: str = ""
    zone: str = ""
    followers: list[str] = []
    why: str = ""


class LocationsAnswer(msgspec.Struct):
    """Locations as this front knows them."""

    locations: list[PlaceAnswer]


class NodeAnswer(msgspec.Struct):
    """An instance that holds a partition. ``front``: URL of the read API in the same process; "": it has none."""

    front: str
    zone: str = ""
    instance: str = ""


class RouteAnswer(msgspec.Struct):
    """Who holds a partition. ``leader`` null: nobody is known. ``epoch`` and ``term`` order what is said of it."""

    partition: int
    epoch: int
    term: int
    leader: NodeAnswer | None
    followers: list[NodeAnswer] = []


class RoutesAnswer(msgspec.Struct):
    """Where a keyspace's keys are: how they are shared among partitions, and who holds these, as this front knows it.

    ``layout``: in the form ``xxh3_64;buckets=4096;partitions=4``.
    """

    layout: str
    routes: list[RouteAnswer]


class RefreshAnswer(msgspec.Struct):
    """How many locations are refreshed, or were forgotten."""

    locations: int
