"""Django's databases: each connection of an alias tells the current session what it commits.

Whatever the database's ENGINE is: the driver's connection inside of Django's is wrapped when Django has opened it.
"""

from __future__ import annotations

from typing import Any

from .dbapi import is_tracked, track

_shards: dict[str, str] = {}


def track_database(alias: str, shard: str) -> None:
    """Tracks the connections of a database of the settings, e.g. in ``AppConfig.ready``. ``shard``: e.g. ``shop/0``."""
    from django.db import connections
    from django.db.backends.signals import connection_created

    _shards[alias] = shard
    connection_created.connect(_opened, dispatch_uid="freshet_client.sessions")
    _wrap(connections[alias])  # of this thread; those of others, which may be open, were made before the application


def _opened(connection: Any, **_: Any) -> None:
    if connection.alias in _shards:
        _wrap(connection)


def _wrap(wrapper: Any) -> None:
    inner = wrapper.connection
    if inner is not None and not is_tracked(inner):
        wrapper.connection = track(inner, _shards[wrapper.alias])
