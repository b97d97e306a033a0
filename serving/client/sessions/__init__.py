"""Sessions by themselves: docs/start/sessions.md.

A request's session is the *current* one. Middleware takes it from the request, and gives it back with the answer.
Tracked database connections tell it of what they commit, whichever pool they are from. So it is said once where the
application starts, and its views only write and read.
"""

from .aio import TrackedAsync, track_async
from .asgi import AsgiSessions
from .carrying import HEADER, Carrier
from .current import NoSession, current_async_session, current_session, using
from .dbapi import TrackedDbapi, track
from .wsgi import WsgiSessions

__all__ = [
    "HEADER",
    "AsgiSessions",
    "Carrier",
    "NoSession",
    "TrackedAsync",
    "TrackedDbapi",
    "WsgiSessions",
    "current_async_session",
    "current_session",
    "track",
    "track_async",
    "using",
]
