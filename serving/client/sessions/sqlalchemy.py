"""SQLAlchemy engines, blocking and asynchronous: each of their connections tells the current session its commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ClientError
from .dbapi import is_tracked, track

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine


def track_engine(engine: Engine | AsyncEngine, shard: str) -> None:
    """Tracks the connections of ``engine`` from here on. ``shard``: as in the settings, e.g. ``shop/0``.

    Connections that its pool has opened already are opened anew. A ``do_connect`` listener of your own that opens
    connections must return `dbapi.track` of them: else the engine's connections raise `ClientError` ``not_tracked``.
    """
    from sqlalchemy import event, exc

    blocking: Engine = getattr(engine, "sync_engine", engine)

    def do_connect(dialect: Any, _record: Any, args: Any, options: Any) -> Any:
        return track(dialect.connect(*args, **options), shard)

    def connected(connection: Any, _record: Any) -> None:
        if not is_tracked(connection):
            raise ClientError(
                f"another do_connect listener of {blocking.url!r} opened a connection that is not tracked",
                hint="have it return freshet_client.sessions.track(connection, shard)",
                code="not_tracked",
            )

    def checked_out(connection: Any, _record: Any, _proxy: Any) -> None:
        if not is_tracked(connection):  # the pool replaces it
            raise exc.DisconnectionError("opened before the engine was tracked")

    event.listen(blocking, "do_connect", do_connect)
    event.listen(blocking, "connect", connected)
    event.listen(blocking, "checkout", checked_out)
