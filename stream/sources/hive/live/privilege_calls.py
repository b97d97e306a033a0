"""What Freshet asks a Hive Metastore of roles and privileges, as the Thrift structs that it answers.

Roles are the metastore's, whatever the catalog. The numbers are field numbers, as in
`stream.sources.hive.live.object_calls`; enums are numbers too.
"""

from __future__ import annotations

from collections.abc import Sequence

from stream.sources.hive.live.object_calls import ObjectCalls
from stream.sources.hive.rpc.thrift import field, integer, record, text, texts
from stream.sources.hive.structs import Struct


class PrivilegeCalls(ObjectCalls):
    """Calls as methods. Each raises `MetastoreError` and its subclasses, `ThriftError`."""

    def role_names(self) -> list[str]:
        """The names of all roles."""
        return sorted(self._connection.call("get_role_names", {}))

    def principals_in_role(self, role: str) -> list[Struct]:
        """Who has a role, each a ``RolePrincipalGrant``; nobody if there is no such role."""
        found = self._connection.call("get_principals_in_role", {1: record({1: text(role)})})
        grants: list[Struct] = field(found, 1, [])
        return grants

    def roles_of(self, principal: str, kind: int) -> list[Struct]:
        """The roles that a principal has directly, each a ``RolePrincipalGrant``. ``kind``: a ``PrincipalType``."""
        request = {1: text(principal), 2: integer(kind)}
        found = self._connection.call("get_role_grants_for_principal", {1: record(request)})
        grants: list[Struct] = field(found, 1, [])
        return grants

    def privileges(self, principal: str, kind: int, on: Struct) -> list[Struct]:
        """What a principal may directly, each a ``HiveObjectPrivilege``. ``on``: of `object_ref`.

        On everything it may be of other catalogs too.
        """
        request = {1: text(principal), 2: integer(kind), 3: record(on)}
        return self._connection.call("list_privileges", request) or []

    def privilege_set(self, user: str, groups: Sequence[str], on: Struct) -> Struct:
        """What a user ("": none) and groups may, through roles too: a ``PrincipalPrivilegeSet``."""
        request = {1: record(on)} | ({2: text(user)} if user else {}) | {3: texts(groups)}
        return self._connection.call("get_privilege_set", request) or {}

    def object_ref(
        self, kind: int, db: str = "", table: str = "", values: Sequence[str] = (), column: str = ""
    ) -> Struct:
        """A ``HiveObjectRef`` of this catalog. ``kind``: a ``HiveObjectType``; 0: everything."""
        named = {1: integer(kind), 2: text(db), 3: text(table), 4: texts(values), 5: text(column)}
        given = {1: kind, 2: db, 3: table, 4: values, 5: column}
        return {number: typed for number, typed in named.items() if given[number]} | {6: text(self.catalog)}
