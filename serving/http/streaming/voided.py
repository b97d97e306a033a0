"""Rows that changed to what the log has not (``op`` = ``void``), read for a reader of a stream who asks for it.

Each is read as any reader would read it whose session has the event: from its owner, else from the source. So it is
never older than the event, callers share the source, and a reader pays for it. What can't be read so stays void.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from serving.answers import RawRowAnswer
from serving.client.errors import BadRequest
from serving.client.keys import format_key
from serving.errors import ReadError
from serving.http.admission.callers import metering
from serving.http.batches import source_asked
from serving.http.limits import SOURCE_COST
from serving.reads.demands import ReadDemand, RequestedRow
from serving.reads.descriptions import Descriptions
from serving.reads.rows import RowReads
from serving.reads.spaces import RowSpace
from serving.sources.source import RowTable
from serving.streams.encoding import NONE_READ, ReadRow
from stream.changes.items import Transaction
from stream.wire.canonical import UNDECODABLE
from stream.wire.keys import SEPARATOR
from tokens import Position, Vector

ROWS_MAX: Final = 1_000
"""Of a transaction, so many are read,"""
BYTES_MAX: Final = 16 * 1024 * 1024
"""and no more once their images are so large together,"""
READ_S_MAX: Final = 10.0
"""or after so long: a stream must go on, and say how far it is."""
AT_ONCE: Final = 16
"""Keys of one read: an image may be as large as the source lets it."""

_parts: Final = msgspec.json.Decoder(list[msgspec.Raw])
_image: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_bytes: Final = msgspec.json.Decoder(dict[str, bytes])
"""Of ``{"base64": …}``."""


class VoidedRows:
    """Reads the void rows of transactions of one keyspace. ``wait_ms``: how long an owner that is behind is awaited."""

    def __init__(self, rows: RowReads, descriptions: Descriptions, space: RowSpace, wait_ms: int) -> None:
        self._rows, self._descriptions, self._space = rows, descriptions, space
        self._wait_ms = wait_ms

    async def read(self, item: Transaction, keys: Sequence[bytes]) -> Mapping[bytes, ReadRow]:
        """Of ``keys``, each row that was read at or past ``item``."""
        if not keys:
            return NONE_READ
        vector = Vector({item.shard: (item.place.epoch, Position.parse(item.position))})
        demand = ReadDemand(vector, given=True, max_wait_ms=self._wait_ms)
        found: dict[bytes, ReadRow] = {}
        with suppress(TimeoutError, ReadError):  # what was read until then counts
            async with asyncio.timeout(READ_S_MAX):
                await self._read_all(keys[:ROWS_MAX], demand, found)
        return found

    async def _read_all(self, keys: Sequence[bytes], demand: ReadDemand, found: dict[bytes, ReadRow]) -> None:
        """Raises `ReadError` if no more is to be read."""
        size = 0
        wanted = [(key, asked) for key in keys if (asked := _requested(key)) is not None]
        for at in range(0, len(wanted), AT_ONCE):
            part = wanted[at : at + AT_ONCE]
            meter = metering.get()
            if meter is not None:
                meter.pay(len(part))
            answers = await self._rows.read_many(self._space, [asked for _, asked in part], demand)
            if meter is not None:
                meter.owe((SOURCE_COST - 1) * source_asked(answers))
            if all(isinstance(each, ReadError) for each in answers):
                return  # whoever is away now would be waited for with each further part
            for (key, _), answer in zip(part, answers, strict=True):
                read = await self._proved(key, answer)
                if read is not None:
                    found[key] = read
                    size += len(read.image or b"")
            if size >= BYTES_MAX:
                return

    async def _proved(self, key: bytes, answer: RawRowAnswer | ReadError) -> ReadRow | None:
        """What an answer says of the very row of ``key``; None: nothing. Raises `ReadError`."""
        if isinstance(answer, ReadError) or answer.freshness != "fresh":
            return None
        if not answer.found:
            return ReadRow(None, answer.token)
        name, _, own = key.partition(SEPARATOR)
        image = bytes(answer.value)
        table = await self._descriptions.get(self._space, name.decode())
        return ReadRow(image, answer.token) if _key_in(image, table) == own else None


def _requested(key: bytes) -> RequestedRow | None:
    """The row of a key of the log, as a request names it; None: no row has such a key.

    What is no key of a row any more is refused later.
    """
    name, _, columns = key.partition(SEPARATOR)
    try:
        values = [_column(bytes(each)) for each in _parts.decode(columns)]
        return RequestedRow(name.decode(), format_key(values).encode())
    except (*UNDECODABLE, KeyError, BadRequest):
        return None


def _column(value: bytes) -> str | bytes:
    """A canonical value. A number stays the text that it is."""
    if value.startswith(b"{"):
        return _bytes.decode(value)["base64"]
    return msgspec.json.decode(value, type=str) if value.startswith(b'"') else value.decode()


def _key_in(image: bytes, table: RowTable) -> bytes:
    """The key that a row has. A collation finds a row by another spelling: that one is told under its own key."""
    columns = _image.decode(image)
    return b"[" + b",".join(bytes(columns.get(column.name, b"")) for column in table.key) + b"]"
