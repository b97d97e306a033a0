"""Which tables' constraints are written when a table may have got a key that foreign keys need to be shown."""

from __future__ import annotations

from typing import Any, cast

import pytest

from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.live.pointing import brought_to_light
from stream.sources.hive.messages import HiveMessageError, TableObject
from stream.sources.hive.rpc.connection import MetastoreRefused, MetastoreTimeout
from stream.sources.hive.structs import ThriftError
from stream.wire.events import Change, ObjectImage

TABLES = {"d.parent": 1, "d.child": 2, "d.other": 3}


class Server:
    """A metastore in which ``children`` point to ``d.parent``; an error: it fails in that. ``stored``: its tables."""

    def __init__(self, children: list[str] | Exception, stored: dict[str, int]) -> None:
        self._children, self._stored = children, stored

    def pointing_to(self, _: str) -> list[str]:
        """The tables that do."""
        if isinstance(self._children, Exception):
            raise self._children
        return self._children

    def tables(self, names: list[str]) -> dict[str, TableObject | HiveMessageError]:
        """Those that exist; of id 0 is one that cannot be read."""
        known = {name: self._stored[name] for name in names if name in self._stored}
        return {
            name: TableObject(name, at, False, False, b"") if at else HiveMessageError("damaged")
            for name, at in known.items()
        }


def found(server: Server, event_type: str = "ADD_PRIMARYKEY") -> set[int]:
    """The tables that an event of ``d.parent`` writes besides it."""
    written: list[Change] = [ObjectImage("constraints", 1, (), "written")]
    names = {table_id: name for name, table_id in TABLES.items()}
    shown = brought_to_light(
        cast("Metastore", server),
        cast("dict[str, Any]", {"eventType": event_type}),
        written,
        lambda table_id: names.get(table_id, ""),
        lambda: TABLES,
    )
    return {each.table_id for each in shown if isinstance(each, ObjectImage) and each.change == "written"}


@pytest.mark.parametrize("event_type", ["ADD_PRIMARYKEY", "ADD_UNIQUECONSTRAINT", "ALTER_TABLE", "DROP_CONSTRAINT"])
def test_a_table_that_may_have_got_a_key_writes_those_that_point_to_it(event_type: str) -> None:
    """They show their keys again. Nothing else is asked; a table that is not followed has nothing that is published."""
    server = Server(["d.child", "d.new", "d.damaged"], {**TABLES, "d.new": 9, "d.damaged": 0})
    assert found(server, event_type) == ({2} if event_type != "DROP_CONSTRAINT" else set())


@pytest.mark.parametrize(
    "server",
    [
        Server([], {**TABLES, "d.parent": 7}),
        Server([], {"d.child": 2}),
        Server(["d.child", "d.renamed"], TABLES),
        Server(MetastoreRefused("get_foreign_keys", 1, "NoSuchObjectException"), TABLES),
        Server(MetastoreTimeout("not within 10 s"), TABLES),
        Server(ThriftError("no message"), TABLES),
    ],
    ids=["another table", "gone", "a child is gone", "refused", "slow", "damaged"],
)
def test_who_points_to_it_may_be_anybody_if_nobody_can_tell(server: Server) -> None:
    """The name is another table's by now, or the metastore fails in it each time: the log must go on."""
    assert found(server) == {2, 3}


def test_a_table_that_cannot_be_read_for_a_moment_shows_its_key_again_too() -> None:
    """Its constraints may have been published, and would stay as they were."""
    assert found(Server(["d.child"], {**TABLES, "d.child": 0})) == {2}
