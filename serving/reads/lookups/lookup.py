"""A row that is looked up: for which request, with which key, and what came of it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias, cast

from consumers.owner.protocol import OwnerRow
from serving.answers import RawRowAnswer, absence_fields, raw_image
from serving.client.answers import FreshnessName, RowAnswer, ServedFrom
from serving.errors import ReadError
from serving.reads.demands import NO_OPTIONS, ReadDemand, RowOptions
from serving.reads.proof import ReadBetween
from serving.reads.rowkey import RowKey
from serving.reads.spaces import RowSpace
from serving.sources.source import RowSource, RowTable, SchemaChanged


class ReadContext(NamedTuple):
    """What all rows of one request share. ``deadline``: when to stop waiting for the source, on the event loop's clock.

    ``since``: when the request came, on the clock of the descriptions. ``is_second``: its tables were described again.
    """

    space: RowSpace
    demand: ReadDemand
    options: RowOptions
    deadline: float
    since: float = 0.0
    is_second: bool = False


class RowLookup(NamedTuple):
    """One requested row, with its table described and its key parsed."""

    context: ReadContext
    table: RowTable
    key: RowKey


class RowMiss(NamedTuple):
    """A lookup that only the source can answer. ``row``: the owner's answer, if any; ``why`` it cannot be given.

    ``source``: the one to ask; None: that of the key's shard.
    """

    lookup: RowLookup
    row: OwnerRow | None
    why: str
    source: RowSource | None = None


RowOutcome: TypeAlias = RawRowAnswer | ReadError | SchemaChanged


def answer(
    lookup: RowLookup,
    served_from: ServedFrom,
    freshness: str,
    why: str,
    token: str,
    image: bytes | None,
    own: ReadBetween | None,
) -> RawRowAnswer:
    """What a request is told. ``image``: None: there is no such row. ``own``: where the row stands."""
    options = lookup.context.options
    if image is not None and options is NO_OPTIONS:
        return RowAnswer(served_from, cast("FreshnessName", freshness), why, token, True, raw_image(image))
    compared = options.compare_event_token
    missing = "" if image is not None else f"{lookup.table.name} has no row {list(lookup.key.values)}"
    return RowAnswer(
        served_from,
        cast("FreshnessName", freshness),
        why,
        token,
        found=image is not None,
        value=raw_image(image),
        event_token=str(own.latest) if own is not None and options.include_event_token else None,
        fresher=own.is_fresher(compared) if own is not None and compared is not None else None,
        **absence_fields(missing),
    )
