"""SQLAlchemy's engines are tracked whatever their pools had opened before, over a database in this process."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from serving.client.errors import ClientError
from serving.client.sessions.dbapi import is_tracked
from serving.client.sessions.sqlalchemy import track_engine


def is_connection_tracked(engine: sa.Engine) -> bool:
    """Whether the one that the pool gives is."""
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar() == 1
        return is_tracked(connection.connection.dbapi_connection)


def test_a_connection_that_was_opened_before_is_replaced(tmp_path: Path) -> None:
    """What is written over it would be seen by nobody's session."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shop.db", pool_size=1, poolclass=sa.QueuePool)
    assert not is_connection_tracked(engine)
    track_engine(engine, "shop/0")
    assert is_connection_tracked(engine)
    assert is_connection_tracked(engine)
    engine.dispose()


def test_a_listener_that_opens_connections_without_tracking_is_refused() -> None:
    """It is told when the first connection is opened, not by reads that miss writes."""
    engine = sa.create_engine("sqlite://", poolclass=sa.NullPool)

    def opens(*_: Any) -> sqlite3.Connection:
        return sqlite3.connect(":memory:")

    sa.event.listen(engine, "do_connect", opens)
    track_engine(engine, "shop/0")
    with pytest.raises(ClientError) as refused:
        is_connection_tracked(engine)
    assert refused.value.code == "not_tracked"
