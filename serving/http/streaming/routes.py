"""``GET /v1/stream``: a keyspace's changes as they happen."""

from __future__ import annotations

from collections.abc import AsyncGenerator, MutableMapping
from time import monotonic
from typing import Final

from serving.client.streaming import StreamEvent
from serving.errors import ReadError
from serving.http.front import Front
from serving.http.route import Route
from serving.http.streaming.parameters import HANDOVER, NDJSON, SSE, StreamParameters, begin_of, choice_of, ends_now
from serving.http.streaming.sending import Streaming
from serving.http.streaming.voided import VoidedRows
from serving.reads.spaces import RowSpace
from serving.streams.encoding import NONE_READ, Encoder, tables_of
from serving.streams.reading import Reading
from stream.changes.items import Item, Transaction

CHUNK_BYTES: Final = 64 * 1024
"""Encoded events are sent when they are this large together, when rows were read for one, or when no more are there."""


async def get_stream(front: Front, parameters: StreamParameters, _: None) -> Streaming:
    """Events, one after the other, until the reader leaves."""
    space = front.row_space(parameters.keyspace)
    if front.streams is None:
        raise ReadError("stream_unavailable", "this front has no Kafka to read streams from")
    begin, ends = begin_of(parameters, front.clock()), ends_now(parameters)
    choice = await choice_of(front, space, parameters)
    prefixes: dict[str, int | None] = {}  # of its own: another reader may be in the past, where they were others
    encoder = Encoder(choice, space.layout, prefixes)
    at_handover = parameters.until == HANDOVER
    reading = await front.streams.begin(space.name, begin, ends_now=ends, ends_at_handover=at_handover)
    learns = prefixes if choice.key_range is not None else None
    voided = None
    if choice.reads_void:
        voided = VoidedRows(front.rows, front.descriptions, space, front.limits.wait_ms_default)
    chunks = _chunks(front, space, reading, encoder, parameters.heartbeat_ms / 1000, learns, voided)
    return Streaming((SSE if choice.is_sse else NDJSON).encode(), chunks, reading.close)


async def _chunks(
    front: Front,
    space: RowSpace,
    reading: Reading,
    encoder: Encoder,
    heartbeat_s: float,
    learns: MutableMapping[str, int | None] | None,
    voided: VoidedRows | None,
) -> AsyncGenerator[bytes]:
    """``learns``: the prefixes of tables, if they are needed. ``voided``: reads rows, if the reader wants that."""
    try:
        yield encoder.watermark(reading.watermark, reading.watermark.checkpoint)
        told_at, held = monotonic(), bytearray()
        async for batch in reading.batches(heartbeat_s):
            if learns is not None:
                await _learn_prefixes(front, space, [item for item, _ in batch], learns)
            for item, checkpoint in batch:
                read, keys = NONE_READ, list[bytes]()
                if voided is not None and isinstance(item, Transaction):
                    keys = encoder.void_rows(item)
                    read = await voided.read(item, keys)
                held += encoder.item(item, checkpoint, read)
                # Reading may have taken seconds, and a batch of such would be silence for minutes.
                if len(held) >= CHUNK_BYTES or keys:
                    yield bytes(held)
                    held.clear()
            # Not at the end's own place: who goes on there is told of no end.
            if monotonic() - told_at >= heartbeat_s and not reading.has_ended:
                told_at = monotonic()
                held += encoder.watermark(reading.watermark, reading.watermark.checkpoint)
            if held:
                yield bytes(held)
                held.clear()
            if reading.has_ended:
                yield encoder.end(reading.watermark, reading.watermark.checkpoint)
                return
        yield encoder.error(ReadError("stopping", "the front stops"))
    except ReadError as error:
        front.metrics.refused(error.code)
        yield encoder.error(error)


async def _learn_prefixes(
    front: Front, space: RowSpace, items: list[Item], prefixes: MutableMapping[str, int | None]
) -> None:
    """Has ``prefixes`` know the tables of ``items``. Raises `ReadError` ``stream_unavailable`` if nobody tells one.

    A table that is gone, or has no key any more, is described without the prefix that it had.
    """
    for table in tables_of(items) - prefixes.keys():
        unknown = 0 if table in space.layout.prefixes else None  # one of the layout goes before all others
        try:
            described = await front.descriptions.get(space, table)
            prefixes[table] = described.prefix if described.key else unknown
        except ReadError as error:
            if error.code != "unknown_table":
                raise ReadError("stream_unavailable", f"{table}: {error}") from error  # a guess would leave rows out
            prefixes[table] = unknown


STREAMING: Final[tuple[Route[StreamParameters, None], ...]] = (
    Route(
        method="GET",
        path="/v1/stream",
        handler=get_stream,
        parameters=StreamParameters,
        answer=StreamEvent,
        content_types=(NDJSON, SSE),
        headers={"accept": b"accept", "last_event_id": b"last-event-id"},
        errors=(
            *("bad_token", "bad_checkpoint", "unknown_keyspace", "unknown_table", "unknown_column", "bad_key"),
            "no_owner",
            *("source_unreachable", "source_failed", "stream_too_old", "checkpoint_lost", "too_many_streams"),
            "stream_unavailable",
        ),
        name="getStream",
        tag="stream",
        summary="Follow a keyspace's changes",
        text="Whole transactions, each shard's in its order, and watermarks between them. One JSON object a line, or "
        "server-sent events. Every event has a `checkpoint`: send it as `from` to go on after the event. "
        "An `error` event ends a stream that can't go on, an `end` one a stream that has `until`.",
        returns="Events, until the reader leaves or, if `until` is given, the end.",
    ),
)
