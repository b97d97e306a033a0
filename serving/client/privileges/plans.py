"""The plans of a session's reads of roles and privileges, which always come from the metastore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from .. import wire
from ..errors import BadRequest
from ..session import Plan, SessionState, json_text
from .answers import PrincipalType, PrivilegesAnswer, RoleGrantsAnswer, RolesAnswer

Found = TypeVar("Found", RolesAnswer, RoleGrantsAnswer, PrivilegesAnswer)


class PrivilegeState(SessionState):
    """A session's state, with these plans too."""

    def plan_roles(self, *, catalog: str = "hive", max_wait_ms: int | None = None) -> Plan[RolesAnswer]:
        """The names of all roles of the catalog's metastore."""
        return (yield from self._plan_privileges(RolesAnswer, "roles", (), {}, catalog, max_wait_ms))

    def plan_role_principals(
        self, role: str, *, catalog: str = "hive", max_wait_ms: int | None = None
    ) -> Plan[RoleGrantsAnswer]:
        """Who has a role: users, groups and other roles."""
        path = (role, "principals")
        return (yield from self._plan_privileges(RoleGrantsAnswer, "roles", path, {}, catalog, max_wait_ms))

    def plan_roles_of(
        self,
        principal: str,
        principal_type: PrincipalType = "USER",
        *,
        catalog: str = "hive",
        max_wait_ms: int | None = None,
    ) -> Plan[RoleGrantsAnswer]:
        """The roles that a principal has directly, not those that come with them."""
        path, query = (principal, "roles"), {"principal_type": principal_type}
        return (yield from self._plan_privileges(RoleGrantsAnswer, "principals", path, query, catalog, max_wait_ms))

    def plan_privileges(
        self,
        principal: str,
        principal_type: PrincipalType = "USER",
        *,
        db: str = "",
        table: str = "",
        partition: Sequence[str] = (),
        column: str = "",
        global_only: bool = False,
        catalog: str = "hive",
        max_wait_ms: int | None = None,
    ) -> Plan[PrivilegesAnswer]:
        """The privileges that a principal has directly: on an object, global ones, or all.

        ``partition``: its values.
        """
        query = _object(db, table, partition, column) | {"principal_type": principal_type}
        if global_only:
            query["global_only"] = "true"
        path = (principal, "privileges")
        return (yield from self._plan_privileges(PrivilegesAnswer, "principals", path, query, catalog, max_wait_ms))

    def plan_privilege_set(
        self,
        user: str = "",
        groups: Sequence[str] = (),
        *,
        db: str = "",
        table: str = "",
        partition: Sequence[str] = (),
        column: str = "",
        catalog: str = "hive",
        max_wait_ms: int | None = None,
    ) -> Plan[PrivilegesAnswer]:
        """What a user in these groups may do with an object, directly and through roles. Without ``db``: globally."""
        query = _object(db, table, partition, column) | ({"user": user} if user else {})
        if groups:
            query["groups"] = _json_list("groups", groups)
        return (yield from self._plan_privileges(PrivilegesAnswer, "privileges", (), query, catalog, max_wait_ms))

    def _plan_privileges(
        self,
        kind: type[Found],
        first: str,
        path: Sequence[str],
        query: Mapping[str, str],
        catalog: str,
        max_wait_ms: int | None,
    ) -> Plan[Found]:
        demanded = yield from self._plan_demand()
        params = {"catalog": catalog, **query, "token": demanded.token}
        if max_wait_ms is not None:
            params["max_wait_ms"] = str(max_wait_ms)
        found = yield from self._ask(wire.objects_request(first, path, params), wire.reader_of(kind), demanded)
        self._answered(found.token, demanded)
        return found


def _object(db: str, table: str, partition: Sequence[str], column: str) -> dict[str, str]:
    named = {"db": db, "table": table, "column": column}
    named["partition"] = _json_list("partition", partition) if partition else ""
    return {name: text for name, text in named.items() if text}


def _json_list(name: str, texts: Sequence[str]) -> str:
    """Raises `BadRequest` ``bad_parameter`` for one text, which is a sequence of texts too: of its letters."""
    if isinstance(texts, str):
        raise BadRequest(f"{name} is the text {texts!r}", hint="give a list of texts", code="bad_parameter")
    return json_text(list(texts))
