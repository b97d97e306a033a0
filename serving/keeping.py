"""Rows that an application gives to the cache: proved, not believed (docs/decisions/0061-a-given-row-is-proved.md).

What an application says of a row and of its place in history can't be checked by looking at it. So the row is read with
its place as the demand: what the cache proves for it is compared, or else the source's row, which then fills the cache.
That fill compares and sets: it is refused where an event came between, and is tried again a few times.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from serving.client.answers import KeptAnswer
from serving.errors import ReadError
from serving.reads.demands import ReadDemand, RequestedRow
from serving.reads.rows import RowReads
from serving.reads.spaces import RowSpace
from stream.wire.canonical import float_json

ATTEMPTS: Final = 4
"""Reads of one row that is given. Each but the first one sees whether the fill of the one before was kept."""
PAUSE_S: Final = 0.02
"""Before the second read, on average; twice as long before each later one."""
_decode: Final = msgspec.json.Decoder(float_hook=lambda number: msgspec.Raw(float_json(float(number)))).decode
_encode: Final = msgspec.json.Encoder(order="sorted").encode


async def keep_row(
    reads: RowReads, space: RowSpace, wanted: RequestedRow, row: Mapping[str, Any] | None, demand: ReadDemand
) -> KeptAnswer:
    """Proves that ``row`` (None: none) is the wanted one as ``demand`` has it, and says whether the cache has it now.

    Raises `ReadError`: ``fill_lost`` if another one is there; ``bad_token`` without a token; and as a read.
    """
    if not demand.vector:
        raise ReadError(
            "bad_token", "a row is given without the place it is of", hint="send the token that it was read with"
        )
    demand = demand._replace(consistency="leader")
    given = _canonical(msgspec.json.encode(row))
    attempt = 1
    while True:
        [found] = await reads.read_many(space, [wanted], demand)
        if isinstance(found, ReadError):
            raise found
        if _canonical(bytes(found.value)) != given:
            message = f"{wanted.table} has another row of this key: {found.why}"
            raise ReadError("fill_lost", message, token=found.token)
        is_kept = found.served_from == "cache"
        if is_kept or attempt == ATTEMPTS:
            return KeptAnswer(found.served_from, found.freshness, found.why, found.token, is_kept)
        await asyncio.sleep(random.uniform(0.5, 1.5) * PAUSE_S * 2 ** (attempt - 1))
        attempt += 1


def _canonical(row: bytes) -> bytes:
    """JSON of a row as it is compared: in one order, and each float as images have it.

    There 1.0 is 1. Integers keep all their digits.
    """
    return _encode(_decode(row))
