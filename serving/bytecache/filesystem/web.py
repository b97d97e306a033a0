"""HTTP servers, of which fsspec's client says too little: whatever goes wrong is a missing file to it.

And it takes the whole file for a part: servers may answer so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from fsspec import AbstractFileSystem

from serving.bytecache.errors import ByteCacheError

_NOT_THERE: Final = (404, 410)
_PART: Final = 206


def is_web(fs: AbstractFileSystem) -> bool:
    """Whether this is fsspec's client of HTTP. It is not imported here: few processes have what it needs."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return "http" in protocols and hasattr(fs, "set_session")


def failure_of(error: FileNotFoundError) -> BaseException | None:
    """What went wrong as the client asked for a file that may be there; None: the server says that it is not."""
    cause = error.__cause__
    status = getattr(cause, "status", None)
    if cause is None or status in _NOT_THERE:
        return None
    if isinstance(cause, TimeoutError):
        return TimeoutError(f"{error}: the server did not answer")
    if status is not None or isinstance(cause, ValueError):  # the latter: it is no URL
        return cause
    return ConnectionError(f"{error}: {cause}")


async def parts(fs: Any, url: str, ranges: Sequence[tuple[int | None, int | None]]) -> Sequence[bytes]:
    """The bytes of each range, a request for each. Raises `ByteCacheError` ``no_ranges``, and the client's errors.

    Negative places count from the end.
    """
    asked = [asyncio.ensure_future(_part(fs, url, start, end)) for start, end in ranges]
    try:
        return await asyncio.gather(*asked)
    except BaseException:
        for each in asked:
            each.cancel()
        raise


async def _part(fs: Any, url: str, start: int | None, end: int | None) -> bytes:
    given = dict(fs.kwargs)
    headers = {**given.pop("headers", {}), "Accept-Encoding": "identity"}  # of what is packed there are no ranges
    headers["Range"] = await fs._process_limits(url, start, end)
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), headers=headers, **given) as answer:
        fs._raise_not_found_for_status(answer, url)
        if answer.status == _PART or (not start and end is None):
            return await answer.read()  # type: ignore[no-any-return]
        if start or end is None or end < 0:  # the whole may be long: nothing of it is loaded
            raise ByteCacheError("no_ranges", f"{url}: the server ignores ranges")
        try:
            return await answer.content.readexactly(end)  # type: ignore[no-any-return]
        except asyncio.IncompleteReadError as short:
            return short.partial
