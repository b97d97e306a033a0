"""HTTP servers, of which fsspec's client says too little: whatever goes wrong is a missing file to it."""

from __future__ import annotations

from typing import Final

from fsspec import AbstractFileSystem

_NOT_THERE: Final = (404, 410)


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
