"""The routes of roles and privileges: who has which, and what somebody may do. Always from the catalog's source."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from serving.client.privileges.answers import (
    GrantedObject,
    PrincipalType,
    PrivilegesAnswer,
    RoleGrantsAnswer,
    RolesAnswer,
)
from serving.errors import ReadError
from serving.http.front import Front
from serving.http.query import TokenParameter, WaitParameter, check_db, demand_of, json_parameter
from serving.http.responses import Response, answer_response
from serving.http.route import Route
from serving.reads.demands import ReadDemand
from serving.sources.privileges import Member, Principal

GLOBAL: Final = GrantedObject("GLOBAL")
"""No object."""
GROUPS_MAX: Final = 1_000
"""In one question: a metastore asks its database several times for each. A user of Active Directory is in no more."""


PrincipalName = Annotated[str, Meta(description="The name of the user, role or group.")]


class RolesParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Of all roles."""

    catalog: Annotated[str, Meta(description="The catalog's name. Roles are those of its metastore.")] = "hive"
    token: TokenParameter = ""
    max_wait_ms: WaitParameter | UnsetType = UNSET


class RoleParameters(RolesParameters, kw_only=True):
    """Of one role."""

    role: Annotated[str, Meta(description="As the metastore has it: Hive writes roles in lower case.")]


class PrincipalParameters(RolesParameters, kw_only=True):
    """Of a principal."""

    principal: PrincipalName
    principal_type: PrincipalType = "USER"


class _OnObject(RolesParameters, kw_only=True):
    """What privileges are on."""

    db: Annotated[str, Meta(description="The database, or that of the table.")] = ""
    table: Annotated[str, Meta(description="The table.")] = ""
    partition: Annotated[str, Meta(description="JSON array of the values of a partition of the table.")] = ""
    column: Annotated[str, Meta(description="A column of the table, or of the partition.")] = ""


class PrivilegesParameters(_OnObject, kw_only=True):
    """Of the privileges of a principal."""

    principal: PrincipalName
    principal_type: PrincipalType = "USER"
    global_only: Annotated[bool, Meta(description="Only global privileges, which are on no object.")] = False


class PrivilegeSetParameters(_OnObject, kw_only=True):
    """Of what a user in some groups may do."""

    user: Annotated[str, Meta(description="The user's name. User, groups or both must be given.")] = ""
    groups: Annotated[str, Meta(description=f"JSON array of the groups that the user is in, at most {GROUPS_MAX}.")] = (
        ""
    )


async def get_roles(front: Front, parameters: RolesParameters, __: None) -> Response:
    """One `RolesAnswer`."""
    space, demand = front.table_space(parameters.catalog), _demand(front, parameters)
    told, _, roles = await front.privileges.read(space, demand, lambda source, _: source.read_roles())
    return answer_response(RolesAnswer(**told, roles=roles))


async def get_role_principals(front: Front, parameters: RoleParameters, _: None) -> Response:
    """One `RoleGrantsAnswer`."""
    space, demand, role = front.table_space(parameters.catalog), _demand(front, parameters), parameters.role
    told, absent, grants = await front.privileges.read(
        space, demand, lambda source, _: source.read_role_principals(role)
    )
    return _response(RoleGrantsAnswer(**told, grants=grants, **absent))


async def get_roles_of(front: Front, parameters: PrincipalParameters, _: None) -> Response:
    """One `RoleGrantsAnswer`."""
    space, demand, principal = front.table_space(parameters.catalog), _demand(front, parameters), _principal(parameters)
    told, absent, grants = await front.privileges.read(space, demand, lambda source, _: source.read_roles_of(principal))
    return _response(RoleGrantsAnswer(**told, grants=grants, **absent))


async def get_privileges(front: Front, parameters: PrivilegesParameters, _: None) -> Response:
    """One `PrivilegesAnswer`."""
    on: GrantedObject | None = _object(parameters)
    if parameters.global_only and on != GLOBAL:
        raise ReadError("bad_parameter", "global_only and an object are both given: ask for one of them")
    if on == GLOBAL and not parameters.global_only:
        on = None
    return await _privileges(front, parameters, _principal(parameters), on)


async def get_privilege_set(front: Front, parameters: PrivilegeSetParameters, _: None) -> Response:
    """One `PrivilegesAnswer`."""
    groups = _groups(parameters)
    if not parameters.user and not groups:
        raise ReadError("bad_parameter", "neither user nor groups are given")
    if len(groups) > GROUPS_MAX:
        raise ReadError("bad_parameter", f"{len(groups)} groups are given, and {GROUPS_MAX} may be")
    _check_names("user and groups", parameters.user, *groups)
    of = Member(parameters.user, tuple(groups))
    return await _privileges(front, parameters, of, _object(parameters), asked=len(groups))


def _groups(parameters: PrivilegeSetParameters) -> list[str]:
    groups: list[str] = json_parameter("groups", parameters.groups, list[str]) or []
    return groups


async def _privileges(
    front: Front, parameters: RolesParameters, of: Principal | Member, on: GrantedObject | None, asked: int = 1
) -> Response:
    space, demand = front.table_space(parameters.catalog), _demand(front, parameters)
    told, absent, privileges = await front.privileges.read(
        space, demand, lambda source, known: source.read_privileges(of, on, known)
    )
    return _response(PrivilegesAnswer(**told, privileges=privileges, **absent), asked)


def _object(parameters: _OnObject) -> GrantedObject:
    """The object that a request names, as Hive keeps names; `GLOBAL`: none. Raises `ReadError` ``bad_parameter``."""
    db, table, column = parameters.db.lower(), parameters.table.lower(), parameters.column.lower()
    values: list[str] = json_parameter("partition", parameters.partition, list[str]) or []
    if (table and not db) or ((column or values) and not table):
        raise ReadError("bad_parameter", "a table is named with its db, a partition and a column with their table")
    if table:
        check_db(db)
    _check_names("db, table, partition and column", db, table, column, *values)
    kind = "COLUMN" if column else "PARTITION" if values else "TABLE" if table else "DATABASE" if db else "GLOBAL"
    return GrantedObject(kind, db, table, tuple(values), column)


def _check_names(what: str, *names: str) -> None:
    """A database that takes no NUL fails then, and a metastore may try it again until it counts as away."""
    if any("\0" in name for name in names):
        raise ReadError("bad_parameter", f"{what}: one of them contains a NUL character")


def _principal(parameters: PrincipalParameters | PrivilegesParameters) -> Principal:
    return Principal(parameters.principal, parameters.principal_type)


def _demand(front: Front, parameters: RolesParameters) -> ReadDemand:
    return demand_of(parameters.token, parameters.max_wait_ms, front.limits)


def _response(answer: RoleGrantsAnswer | PrivilegesAnswer, asked: int = 1) -> Response:
    """200; 404 if the role or object that was asked for does not exist."""
    return answer_response(answer, 404 if answer.code else 200, asked=asked)


_ERRORS: Final = (
    *("bad_token", "unknown_keyspace", "history_lost"),
    *("source_unreachable", "source_behind", "source_failed"),
)
_ALWAYS: Final = "Always from the metastore, and `eventual`: no event tells of roles and privileges. "
PRIVILEGES: Final[tuple[Route[Any, Any], ...]] = (
    Route(
        method="GET",
        path="/v1/roles",
        handler=get_roles,
        parameters=RolesParameters,
        answer=RolesAnswer,
        errors=_ERRORS,
        name="getRoles",
        tag="catalog",
        summary="Read the names of all roles",
        text=f"{_ALWAYS}They are of all catalogs of the metastore.",
        returns="The names.",
    ),
    Route(
        method="GET",
        path="/v1/roles/{role}/principals",
        handler=get_role_principals,
        parameters=RoleParameters,
        answer=RoleGrantsAnswer,
        errors=(*_ERRORS, "not_found"),
        name="getRolePrincipals",
        tag="catalog",
        summary="Read who has a role",
        text=f"{_ALWAYS}Users, groups and other roles to whom it was granted.",
        returns="The grants of the role.",
    ),
    Route(
        method="GET",
        path="/v1/principals/{principal}/roles",
        handler=get_roles_of,
        parameters=PrincipalParameters,
        answer=RoleGrantsAnswer,
        errors=(*_ERRORS, "not_found"),
        name="getRolesOf",
        tag="catalog",
        summary="Read the roles of a user, role or group",
        text=f"{_ALWAYS}Roles that it has directly, not those that come with them. A metastore does not know which "
        "users and groups there are: of any other name the answer is empty.",
        returns="The grants of roles to it.",
    ),
    Route(
        method="GET",
        path="/v1/principals/{principal}/privileges",
        handler=get_privileges,
        parameters=PrivilegesParameters,
        answer=PrivilegesAnswer,
        errors=(*_ERRORS, "not_found"),
        name="getPrivileges",
        tag="catalog",
        summary="Read the privileges of a user, role or group",
        text=f"{_ALWAYS}Those that it has directly: on the object that is named, with `global_only` those on none, "
        "else all that are global or of this catalog.",
        returns="The privileges.",
    ),
    Route(
        method="GET",
        path="/v1/privileges",
        handler=get_privilege_set,
        parameters=PrivilegeSetParameters,
        elements=lambda parameters, _: len(_groups(parameters)),
        answer=PrivilegesAnswer,
        errors=(*_ERRORS, "not_found"),
        name="getPrivilegeSet",
        tag="catalog",
        summary="Read what a user may do with an object",
        text=f"{_ALWAYS}What the user and the groups have on the object, and what all roles have that come with them. "
        "Without an object it is what they have globally, to which Hive adds no role's.",
        returns="The privileges, each with the user, group or role that has it.",
    ),
)
