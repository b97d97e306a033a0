"""Roles and privileges over HTTP: what is asked of the source, what is proved of its answer, and who may ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from serving.client import BadRequest, NotFoundError, Session, Unavailable
from serving.client.privileges.answers import GrantedObject, Privilege, RoleGrant
from serving.client.sending.requests import arguments
from serving.client.wire import HttpRequest
from serving.http.app import make_app
from serving.http.front import make_front
from serving.http.privileges.routes import GROUPS_MAX
from serving.locations.refreshing import Locations
from serving.reads.spaces import TableSpace
from serving.sources.hive_privileges import read_privileges, read_role_principals, read_roles_of
from serving.sources.privileges import Member, Principal, SourcePrivileges
from serving.sources.source import TableSource
from stream.access.grants import Access, Credential, Grant, digest_of
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.live.privilege_calls import PrivilegeCalls
from stream.sources.hive.rpc.thrift import integer, record, text, texts
from stream.sources.hive.structs import LIST, MAP, STRING, STRUCT, ListValue, MapValue, Struct
from stream.wire.keys import Layout
from tests.serving.asking import ask_app
from tests.serving.fakes import FakeTableSource, at
from tests.serving.test_table_reads import SHARD, external
from tokens import Position, Vector

GRANT = RoleGrant("analysts", "ada", "USER", True, 9, "root", "USER")
ON_TABLE = GrantedObject("TABLE", "sales", "orders")
PRIVILEGE = Privilege("SELECT", ON_TABLE, "analysts", "ROLE", False, 9, "root", "USER", "SQL")


class Source(FakeTableSource):
    """Tells the roles and privileges above at ``at``, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(external())
        self.at, self.hi, self.missing = at("0-1-5"), cast("Position | None", None), ""
        self.asked: list[Any] = []

    def _answer(self, found: list[Any], *asked: Any) -> SourcePrivileges[Any]:
        self.asked.append(asked)
        return SourcePrivileges([] if self.missing else found, self.at, self.hi, self.missing)

    async def read_roles(self) -> SourcePrivileges[str]:
        return self._answer(["admin", "analysts"])

    async def read_role_principals(self, role: str) -> SourcePrivileges[RoleGrant]:
        return self._answer([GRANT], role)

    async def read_roles_of(self, principal: Principal) -> SourcePrivileges[RoleGrant]:
        return self._answer([GRANT], principal)

    async def read_privileges(
        self, of: Principal | Member, on: GrantedObject | None, known: str = ""
    ) -> SourcePrivileges[Privilege]:
        return self._answer([PRIVILEGE], of, on, known)


def session_of(source: TableSource, seen: str = "", access: Access | None = None, secret: str = "") -> Session:
    """A session that has seen a position of the source, through fronts that have no owner: one for each event loop."""
    headers = {"authorization": f"Bearer {secret}"} if secret else {}

    def send(request: HttpRequest) -> tuple[int, bytes]:
        front = make_front([TableSpace("hive", Layout(1), source)], Locations(), access=access)
        chosen: dict[str, Any] = arguments("http://front", request)
        chosen["headers"] = {**(chosen.get("headers") or {}), **headers}
        response = ask_app(make_app(front), chosen.pop("method"), chosen.pop("url"), **chosen)
        return response.status_code, response.content

    return Session(send, Vector({SHARD: (1, at(seen))}) if seen else Vector())


def test_what_a_source_has_is_told_as_it_is() -> None:
    """All of it, from the source, and eventual: of such a thing no position proves anything."""
    source = Source()
    session = session_of(source, "0-1-4")
    roles = session.get_roles()
    assert (roles.roles, roles.served_from, roles.freshness) == (["admin", "analysts"], "source", "eventual")
    assert session.get_role_principals("analysts").grants == [GRANT]
    assert session.get_roles_of("ada").grants == [GRANT]
    assert session.get_privileges("analysts", "ROLE", db="Sales", table="Orders").privileges == [PRIVILEGE]
    assert session.get_privilege_set("ada", ["staff"], db="sales").privileges == [PRIVILEGE]
    assert source.asked == [
        (),
        ("analysts",),
        (Principal("ada", "USER"),),
        (Principal("analysts", "ROLE"), ON_TABLE, "MariaDB/0-1-4"),
        (Member("ada", ("staff",)), GrantedObject("DATABASE", "sales"), "MariaDB/0-1-4"),
    ]


def test_an_answers_json_is_as_it_is_documented() -> None:
    """Programs without the client read these names; of an object only the parts that it has are there."""
    session = session_of(Source())
    _, members = session._send(HttpRequest("GET", "/v1/roles/analysts/principals", {}))
    granted = {"grant_option": True, "granted_at": 9, "grantor": "root", "grantor_type": "USER"}
    assert msgspec.json.decode(members)["grants"] == [
        {"role": "analysts", "principal": "ada", "principal_type": "USER", **granted}
    ]
    _, privileges = session._send(HttpRequest("GET", "/v1/principals/analysts/privileges", {"principal_type": "ROLE"}))
    assert msgspec.json.decode(privileges)["privileges"] == [
        {
            "privilege": "SELECT",
            "on": {"type": "TABLE", "db": "sales", "table": "orders"},
            "principal": "analysts",
            "principal_type": "ROLE",
            "authorizer": "SQL",
            **granted,
            "grant_option": False,
        }
    ]


@pytest.mark.parametrize(
    ("named", "on"),
    [
        ({}, None),
        ({"global_only": True}, GrantedObject("GLOBAL")),
        ({"db": "D"}, GrantedObject("DATABASE", "d")),
        ({"db": "d", "table": "T"}, GrantedObject("TABLE", "d", "t")),
        ({"db": "d", "table": "t", "partition": ["A", ""]}, GrantedObject("PARTITION", "d", "t", ("A", ""))),
        ({"db": "d", "table": "t", "column": "C"}, GrantedObject("COLUMN", "d", "t", (), "c")),
        (
            {"db": "d", "table": "t", "partition": ["1"], "column": "c"},
            GrantedObject("COLUMN", "d", "t", ("1",), "c"),
        ),
    ],
)
def test_an_object_is_what_the_request_names(named: dict[str, Any], on: GrantedObject | None) -> None:
    """Names are folded as Hive does, values of partitions are not. None at all: everything."""
    source = Source()
    session_of(source).get_privileges("ada", **named)
    assert source.asked == [(Principal("ada", "USER"), on, "")]


@pytest.mark.parametrize(
    "ask",
    [
        lambda session: session.get_privileges("ada", table="t"),
        lambda session: session.get_privileges("ada", db="d", column="c"),
        lambda session: session.get_privileges("ada", db="d", partition=["1"]),
        lambda session: session.get_privileges("ada", db="a.b", table="t"),
        lambda session: session.get_privileges("ada", db="d", global_only=True),
        lambda session: session.get_privileges("ada", "ROOT"),
        lambda session: session.get_roles_of("ada", "user"),
        lambda session: session.get_privilege_set(db="d"),
        lambda session: session.get_privilege_set("ada", ["g"] * (GROUPS_MAX + 1)),
        lambda session: session.get_privilege_set("a\0"),
        lambda session: session.get_privilege_set("ada", ["staff", "\0"]),
        lambda session: session.get_privileges("ada", db="d\0"),
        lambda session: session.get_privileges("ada", db="d", table="t", partition=["\0"]),
    ],
)
def test_half_a_question_is_refused(ask: Callable[[Session], object]) -> None:
    """Of another object, or of nobody, the answer would be another one. No name has a NUL, nobody so many groups."""
    with pytest.raises(BadRequest) as refused:
        ask(session_of(Source()))
    assert refused.value.code == "bad_parameter"


@pytest.mark.parametrize(
    "ask",
    [
        lambda session: session.get_privilege_set("ada", "staff"),
        lambda session: session.get_privileges("ada", db="d", table="t", partition="2024"),
        lambda session: session.get_privilege_set("ada", db="d", table="t", partition="2024"),
    ],
)
def test_one_text_is_no_list_of_groups_or_values(ask: Callable[[Session], object]) -> None:
    """It would be one of its letters: what the groups s, t, a and f may do."""
    source = Source()
    with pytest.raises(BadRequest, match="is the text") as refused:
        ask(session_of(source))
    assert (refused.value.code, source.asked) == ("bad_parameter", [])


@pytest.mark.parametrize("name", [".", "..", "a/b", "%2E", "ä"])
def test_any_name_of_a_principal_reaches_the_source(name: str) -> None:
    """A segment that is a dot or two would be removed from the path on the way."""
    source = Source()
    session = session_of(source)
    assert session.get_role_principals(name).grants == [GRANT]
    assert session.get_privileges(name).privileges == [PRIVILEGE]
    assert source.asked == [(name,), (Principal(name, "USER"), None, "")]


def test_an_unknown_role_or_object_is_not_found() -> None:
    """404 with an answer, as of a row."""
    source = Source()
    source.missing = "role nope"
    session = session_of(source)
    members, privileges = session.get_role_principals("nope"), session.get_privileges("nope", "ROLE")
    assert (members.code, members.message, members.grants) == ("not_found", "catalog hive has no role nope", [])
    assert (privileges.code, privileges.privileges) == ("not_found", [])
    status, _ = session._send(HttpRequest("GET", "/v1/roles/nope/principals", {}))
    assert status == 404


def test_a_source_behind_the_session_tells_nothing() -> None:
    """The session's own CREATE may not be there yet: its grants are not either."""
    source = Source()
    with pytest.raises(Unavailable) as behind:
        session_of(source, "0-1-6").get_roles(max_wait_ms=0)
    assert behind.value.code == "source_behind"
    answers = iter([at("0-1-5"), at("0-1-6")])

    async def catching_up() -> SourcePrivileges[str]:
        return SourcePrivileges(["admin"], next(answers))

    source.read_roles = catching_up  # type: ignore[method-assign]
    assert session_of(source, "0-1-6").get_roles(max_wait_ms=10_000).roles == ["admin"]


def test_a_session_moves_to_what_the_log_tells_of_the_object_only() -> None:
    """Roles are not in the log: after them a table may still come from the cache."""
    source = Source()
    session = session_of(source, "0-1-4")
    session.get_roles()
    assert session.vector == Vector({SHARD: (1, at("0-1-4"))})
    source.hi = at("0-1-8")
    session.get_privileges("ada", db="sales")
    assert session.vector == Vector({SHARD: (1, at("0-1-8"))})


def test_a_source_without_roles_is_unreachable() -> None:
    """Such as the workload's."""
    with pytest.raises(Unavailable) as refused:
        session_of(FakeTableSource(external())).get_roles()
    assert refused.value.code == "source_unreachable"


def test_who_may_not_see_the_catalog_sees_no_roles() -> None:
    """They are read as all of the catalog is: with the role read, for its keyspace."""
    grants = {
        "of-hive": Grant("of-hive", frozenset({"read"}), frozenset({"hive"})),
        "of-shop": Grant("of-shop", frozenset({"read"}), frozenset({"shop"})),
    }
    access = Access([Credential(grant, digest_of(name.encode())) for name, grant in grants.items()])
    assert session_of(Source(), access=access, secret="of-hive").get_roles().roles
    with pytest.raises(NotFoundError) as hidden:
        session_of(Source(), access=access, secret="of-shop").get_roles()
    assert hidden.value.code == "unknown_keyspace"


class Calls(PrivilegeCalls):
    """A metastore that answers with ``answers``, by call, at event 7."""

    def __init__(self, **answers: Any) -> None:
        super().__init__("hive", cast("Any", self))
        self.answers = {"get_role_names": ["admin"], **answers}
        self.asked: list[tuple[str, Struct]] = []

    def call(self, name: str, arguments: Struct) -> Any:
        self.asked.append((name, arguments))
        return self.answers[name]

    def last_event(self) -> int:
        """The log's end."""
        return 7

    @property
    def as_metastore(self) -> Metastore:
        """As what it stands for."""
        return cast("Metastore", self)


def privilege_on(kind: int, catalog: str = "", **named: str) -> Struct:
    """A ``HiveObjectPrivilege``."""
    ref: Struct = {1: integer(kind)} | ({2: text(named["db"])} if "db" in named else {})
    ref |= ({3: text(named["name"])} if "name" in named else {}) | ({6: text(catalog)} if catalog else {})
    info: Struct = {1: text("ALL"), 2: integer(9), 3: text("root"), 4: integer(1)}
    return {1: record(ref), 2: text("ada"), 3: integer(1), 4: record(info), 5: text("SQL")}


def test_privileges_on_another_catalogs_objects_are_not_this_ones() -> None:
    """A metastore lists those of all its catalogs together. What is of none is everybody's."""
    calls = Calls(
        list_privileges=[
            privilege_on(2, "hive", db="sales"),
            privilege_on(2, "other", db="secret"),
            privilege_on(1),
            privilege_on(6, name="mysql1"),
            privilege_on(9, "hive", name="n"),
        ]
    )
    found = read_privileges(calls.as_metastore, Principal("ada", "USER"), None)
    assert [each.on for each in found.found] == [
        GrantedObject("DATABASE", "sales"),
        GrantedObject("GLOBAL"),
        GrantedObject("DATACONNECTOR", connector="mysql1"),
        GrantedObject("9", "", "n"),
    ]
    assert found.found[0] == Privilege(
        "ALL", GrantedObject("DATABASE", "sales"), "ada", "USER", False, 9, "root", "USER", "SQL"
    )
    assert calls.asked == [("list_privileges", {1: text("ada"), 2: integer(1), 3: record({6: text("hive")})})]


def test_a_privilege_set_is_told_as_a_list() -> None:
    """Whose each privilege is stands in it: the user's, a group's or a role's."""

    def of(*privileges: str) -> ListValue:
        return ListValue(STRUCT, [{1: text(each), 5: (2, True)} for each in privileges])

    def by_name(**named: ListValue) -> tuple[int, MapValue]:
        return MAP, MapValue(STRING, LIST, [(name.encode(), listed) for name, listed in named.items()])

    calls = Calls(get_privilege_set={1: by_name(ada=of("ALL")), 3: by_name(b=of("SELECT"), a=of("SELECT", "UPDATE"))})
    found = read_privileges(calls.as_metastore, Member("ada", ("staff",)), GrantedObject("GLOBAL"))
    assert [(each.principal_type, each.principal, each.privilege) for each in found.found] == [
        ("USER", "ada", "ALL"),
        ("ROLE", "a", "SELECT"),
        ("ROLE", "a", "UPDATE"),
        ("ROLE", "b", "SELECT"),
    ]
    assert (found.hi, found.found[0].grant_option) == (None, True)
    assert calls.asked == [
        (
            "get_privilege_set",
            {1: record({1: integer(1), 6: text("hive")}), 2: text("ada"), 3: texts(["staff"])},
        )
    ]


@pytest.mark.parametrize(
    ("principal", "missing"),
    [(Principal("nope", "ROLE"), "role nope"), (Principal("admin", "ROLE"), ""), (Principal("nope", "USER"), "")],
)
def test_only_of_roles_it_is_known_which_there_are(principal: Principal, missing: str) -> None:
    """A metastore has no list of users or groups."""
    none = {1: (LIST, ListValue(STRUCT, []))}
    calls = Calls(list_privileges=None, get_role_grants_for_principal=none, get_principals_in_role=none)
    assert read_privileges(calls.as_metastore, principal, GrantedObject("GLOBAL")).missing == missing
    assert read_roles_of(calls.as_metastore, principal).missing == missing
    if principal.type == "ROLE":
        assert read_role_principals(calls.as_metastore, principal.name).missing == missing
