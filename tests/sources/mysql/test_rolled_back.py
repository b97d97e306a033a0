"""What a server owned when a schema was read, and then rolled back: nothing that it logs says so. Without a server."""

from __future__ import annotations

from typing import Any

import pytest

from stream.sources.mariadb import live_schema
from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.gtid import GtidPosition
from stream.wire.events import DescribeTable
from tests.sources.mariadb.test_log_reading import event
from tests.sources.mariadb.test_single_rows import MYSQL, UUID_OF, Log, Schema

UNDER_WAY = f"MySQL56/{UUID_OF[0]}:1-5"


@pytest.mark.parametrize(("owned", "is_known"), [(MYSQL.start, True), (UNDER_WAY, False)])
def test_a_transaction_that_was_rolled_back_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, owned: str, is_known: bool
) -> None:
    """Its number comes no more: the table would be read through for as long as the source runs. One that is still
    under way is waited for.
    """
    schema = Schema()
    monkeypatch.setattr(schema, "_retried", lambda ask: ask(None))
    monkeypatch.setattr(live_schema, "end_of_log", lambda _: GtidPosition.parse(owned))
    schema.catalog.doubt("d.a", schema.live["d.a"], GtidPosition.parse(UNDER_WAY))
    log: Any = Log([event(events.HEARTBEAT, b"bin.000001")], lambda: 0)
    found = next(BinlogReader(log, schema, MYSQL.start).transactions())
    assert (found is not None, schema.catalog.is_settled) == (is_known, is_known)
    if found is not None:
        assert (found.position, [type(each) for each in found.changes][-1]) == (MYSQL.start, DescribeTable)
