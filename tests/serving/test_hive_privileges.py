"""Roles and privileges of a real metastore, through a front: what was granted or revoked is seen at the next read."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.client import Session
from serving.client.privileges.answers import GrantedObject, Privilege, RoleGrant
from serving.sources.hive import HiveTables
from serving.sources.hive_privileges import read_privileges
from serving.sources.hive_tables import position_of
from serving.sources.privileges import Principal
from stream.sources.hive.live.metastore import MetastoreSettings
from stream.sources.hive.rpc.connection import MetastoreError
from stream.sources.hive.rpc.thrift import record, text
from tests.servers.hive_catalog import HiveCatalog
from tests.serving.test_privileges import session_of

USER, ROLE, GROUP = 1, 2, 3


@pytest.fixture
def catalog(hive: tuple[str, int]) -> Iterator[HiveCatalog]:
    """A client with a database of its own on the session's metastore."""
    with HiveCatalog(hive, f"db{uuid.uuid4().hex[:8]}") as client:
        yield client


@pytest.fixture
def session(catalog: HiveCatalog) -> Iterator[Session]:
    """A session of a front whose catalog ``hive`` is read there."""
    source = HiveTables(MetastoreSettings((catalog.address,)), "hive/0")
    yield session_of(source)
    asyncio.run(source.close())


def what(privileges: list[Privilege]) -> set[tuple[str, str, str, str]]:
    """Whose, what, and on what kind of object."""
    return {(each.principal_type, each.principal, each.privilege, each.on.type) for each in privileges}


def test_a_role_a_grant_and_a_revoke_are_seen_at_the_next_read(catalog: HiveCatalog, session: Session) -> None:
    """Nothing is kept, so nobody has to be told that it changed."""
    role, user = f"role_{catalog.db}", f"user_{catalog.db}"
    missing = session.get_role_principals(role)
    assert (missing.code, missing.grants) == ("not_found", [])
    catalog.create_role(role)
    assert role in session.get_roles().roles
    assert (session.get_role_principals(role).code, session.get_role_principals(role).grants) == ("", [])
    catalog.give_role(role, user, USER, option=True)
    [grant] = session.get_role_principals(role).grants
    assert grant == RoleGrant(role, user, "USER", True, grant.granted_at, "tester", "USER")
    assert grant.granted_at > 1_600_000_000
    of_user = session.get_roles_of(user).grants
    assert grant in of_user
    assert [(each.role, each.granted_at, each.grantor) for each in of_user if each != grant] == [("public", 0, "")]

    catalog.create("t", transactional=False)
    on = GrantedObject("TABLE", catalog.db, "t")
    ref = catalog.metastore.object_ref(3, catalog.db, "t")
    catalog.give("SELECT", role, ROLE, ref, option=True)
    [privilege] = session.get_privileges(role, "ROLE", db=catalog.db, table="t").privileges
    assert privilege == Privilege("SELECT", on, role, "ROLE", True, privilege.granted_at, "tester", "USER", "SQL")
    assert privilege.granted_at > 0
    assert session.get_privileges(user, db=catalog.db, table="t").privileges == [], "it has it through its role only"
    effective = session.get_privilege_set(user, db=catalog.db, table="t")
    assert what(effective.privileges) == {("ROLE", role, "SELECT", "TABLE")}
    assert (effective.served_from, effective.freshness) == ("source", "eventual")

    catalog.give("ALL", role, ROLE, catalog.metastore.object_ref(1))
    assert what(session.get_privileges(role, "ROLE", global_only=True).privileges) == {("ROLE", role, "ALL", "GLOBAL")}
    assert session.get_privilege_set(user).privileges == [], "so does the metastore tell it"
    catalog.give("ALL", role, ROLE, catalog.metastore.object_ref(1), revoke=True)

    catalog.give("SELECT", role, ROLE, ref, revoke=True)
    assert session.get_privileges(role, "ROLE").privileges == []
    assert session.get_privilege_set(user, db=catalog.db, table="t").privileges == []
    catalog.give_role(role, user, USER, revoke=True)
    assert session.get_role_principals(role).grants == []


def test_privileges_on_each_kind_of_object(catalog: HiveCatalog, session: Session) -> None:
    """Global ones, and on a database, table, partition and column, each where it was granted, and all together."""
    catalog.create("t", transactional=False, partitioned=True)
    catalog.add_partitions("t", "A/b")
    group, db = f"group_{catalog.db}", catalog.db
    named: dict[str, Any] = {"db": db, "table": "t"}
    places: dict[str, tuple[int, tuple[Any, ...], dict[str, Any]]] = {
        "GLOBAL": (1, (), {"global_only": True}),
        "DATABASE": (2, (db,), {"db": db}),
        "TABLE": (3, (db, "t"), named),
        "PARTITION": (4, (db, "t", ["A/b"]), named | {"partition": ["A/b"]}),
        "COLUMN": (5, (db, "t", (), "a"), named | {"column": "a"}),
    }
    for kind, place, asked in places.values():
        catalog.give("SELECT", group, GROUP, catalog.metastore.object_ref(kind, *place))
        [found] = session.get_privileges(group, "GROUP", **asked).privileges
        on = {name: value for name, value in asked.items() if name != "global_only"}
        wanted = GrantedObject(found.on.type, **{**on, "partition": tuple(on.get("partition", ()))})
        assert (found.on, places[found.on.type][0]) == (wanted, kind)
        on_it = session.get_privilege_set("nobody", [group], **on).privileges
        assert what(on_it) == {("GROUP", group, "SELECT", found.on.type)}
    everything = session.get_privileges(group, "GROUP").privileges
    assert what(everything) == {("GROUP", group, "SELECT", kind) for kind in places}
    of_partition = catalog.metastore.object_ref(5, db, "t", ["A/b"], "a")
    catalog.give("UPDATE", group, GROUP, of_partition)
    [found] = session.get_privileges(group, "GROUP", **named, partition=["A/b"], column="a").privileges
    assert (found.privilege, found.on) == ("UPDATE", GrantedObject("COLUMN", db, "t", ("A/b",), "a"))


def test_privileges_on_objects_of_another_catalog_are_left_out(
    catalog: HiveCatalog, session: Session, tmp_path: Path
) -> None:
    """The metastore lists those of all its catalogs together. Global ones are of none."""
    name, user = f"c{catalog.db}", f"user_{catalog.db}"
    made = {1: text(name), 3: text(f"file:{tmp_path}")}
    catalog.calls.call("create_catalog", {1: record({1: record(made)})})
    database = {1: text(catalog.db), 3: text(f"file:{tmp_path}/db"), 8: text(name)}
    catalog.calls.call("create_database", {1: record(database)})
    there = catalog.metastore.object_ref(2, catalog.db) | {6: text(name)}
    catalog.give("ALL", user, USER, there)
    catalog.give("ALL", user, USER, catalog.metastore.object_ref(1))
    assert what(session.get_privileges(user).privileges) == {("USER", user, "ALL", "GLOBAL")}
    other = HiveTables(MetastoreSettings((catalog.address,), name), "hive/0")
    found = session_of(other).get_privileges(user).privileges
    assert what(found) == {("USER", user, "ALL", "GLOBAL"), ("USER", user, "ALL", "DATABASE")}
    asyncio.run(other.close())


def test_what_is_not_there_is_not_found(catalog: HiveCatalog, session: Session) -> None:
    """Of such objects a metastore gives an empty list, or an error."""
    catalog.create("t", transactional=False, partitioned=True)
    catalog.add_partitions("t", "a")
    named: dict[str, Any] = {"db": catalog.db, "table": "t"}
    calls = catalog.metastore
    assert calls.privileges("ada", USER, calls.object_ref(3, catalog.db, "nothing")) == []
    with pytest.raises(MetastoreError):
        calls.privileges("ada", USER, calls.object_ref(4, catalog.db, "nothing", ["a"]))
    for asked in (
        {"db": "nowhere"},
        {"db": catalog.db, "table": "nothing"},
        {**named, "partition": ["b"]},
        {**named, "partition": ["a", "b"]},
        {**named, "column": "nope"},
    ):
        for found in (session.get_privileges("ada", **asked), session.get_privilege_set("ada", **asked)):
            assert (found.code, found.privileges) == ("not_found", []), asked
    for asked in ({**named, "column": "p"}, {**named, "partition": ["a"]}):
        assert session.get_privileges("ada", **asked).code == ""
    assert session.get_privileges("nobody").code == "", "a metastore knows no users"
    assert session.get_privileges("no_such_role", "ROLE").code == "not_found"


def test_an_answer_is_no_later_than_the_last_event_of_its_object(catalog: HiveCatalog) -> None:
    """Not the end of the log: the session's next read of another table may still come from a cache."""
    metastore, ada = catalog.metastore, Principal("ada", "USER")
    table, database = GrantedObject("TABLE", catalog.db, "t"), GrantedObject("DATABASE", catalog.db)
    known = metastore.last_event()
    catalog.create("t", transactional=False)
    created = metastore.last_event()
    catalog.create("u", transactional=False)
    assert read_privileges(metastore, ada, table, known).hi == position_of(created)
    assert read_privileges(metastore, ada, table, created).hi == position_of(created)
    assert read_privileges(metastore, ada, GrantedObject("GLOBAL"), known).hi is None
    for on in (database, None):
        assert read_privileges(metastore, ada, on, known).hi == position_of(metastore.last_event())
