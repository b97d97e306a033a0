"""Roles and privileges of a metastore, as a front reads them for one reader. No event tells of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from consumers.owner.objects.answering import partition_keys
from serving.client.privileges.answers import GrantedObject, Privilege, RoleGrant
from serving.sources.hive_latest import latest_event
from serving.sources.hive_tables import position_of
from serving.sources.privileges import Member, Principal, SourcePrivileges
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.objects import columns_of
from stream.sources.hive.rpc.thrift import field
from stream.sources.hive.structs import Struct
from tokens import Position

PRINCIPALS: Final = {1: "USER", 2: "ROLE", 3: "GROUP"}
"""``PrincipalType``."""
OBJECTS: Final = {1: "GLOBAL", 2: "DATABASE", 3: "TABLE", 4: "PARTITION", 5: "COLUMN", 6: "DATACONNECTOR"}
"""``HiveObjectType``."""
_NUMBERS: Final = {name: number for names in (PRINCIPALS, OBJECTS) for number, name in names.items()}
_SET: Final = {1: "USER", 2: "GROUP", 3: "ROLE"}
"""Fields of a ``PrincipalPrivilegeSet`` → whose privileges are in them."""


def read_roles(metastore: Metastore) -> SourcePrivileges[str]:
    """The names of all roles. This and the next ones raise `MetastoreError`, `ThriftError`, `HiveMessageError`."""
    at = position_of(metastore.last_event())
    return SourcePrivileges(metastore.role_names(), at)


def read_role_principals(metastore: Metastore, role: str) -> SourcePrivileges[RoleGrant]:
    """Who has a role."""
    at = position_of(metastore.last_event())
    found = [_role_grant(each) for each in metastore.principals_in_role(role)]
    return SourcePrivileges(found, at, missing="" if found else _missing_role(metastore, Principal(role, "ROLE")))


def read_roles_of(metastore: Metastore, principal: Principal) -> SourcePrivileges[RoleGrant]:
    """The roles that a principal has directly."""
    at = position_of(metastore.last_event())
    found = [_role_grant(each) for each in metastore.roles_of(principal.name, _NUMBERS[principal.type])]
    return SourcePrivileges(found, at, missing="" if found else _missing_role(metastore, principal))


def read_privileges(
    metastore: Metastore, of: Principal | Member, on: GrantedObject | None, known: int = 0
) -> SourcePrivileges[Privilege]:
    """The direct privileges of a principal, or all of a member. Others: as in `PrivilegeSource`."""
    lo = metastore.last_event()
    at = position_of(lo)
    missing = _missing_object(metastore, on) if on is not None else ""
    if missing:
        return SourcePrivileges([], at, position_of(metastore.last_event()), missing)
    found = _privileges(metastore, of, on)
    if not found and isinstance(of, Principal):
        missing = _missing_role(metastore, of)
    return SourcePrivileges(found, at, _latest(metastore, on, lo, known), missing)


def _privileges(metastore: Metastore, of: Principal | Member, on: GrantedObject | None) -> list[Privilege]:
    place = on if on is not None else GrantedObject("")
    asked = metastore.object_ref(_NUMBERS.get(place.type, 0), place.db, place.table, place.partition, place.column)
    if isinstance(of, Principal):
        listed = metastore.privileges(of.name, _NUMBERS[of.type], asked)
        return [_privilege(each) for each in listed if _catalog(each) in (None, metastore.catalog)]
    found = metastore.privilege_set(of.user, of.groups, asked)
    return [
        _granted(info, place, name, principal_type)
        for number, principal_type in _SET.items()
        for name, infos in sorted(field(found, number, {}).items())
        for info in infos
    ]


def _latest(metastore: Metastore, on: GrantedObject | None, lo: int, known: int) -> Position | None:
    """After which nothing is that the log tells of what the answer names: it was there."""
    if on is not None and on.type == "GLOBAL":
        return None
    if on is not None and on.table:
        return position_of(latest_event(metastore, f"{on.db}.{on.table}", lo, known))
    return position_of(metastore.last_event())


def _missing_role(metastore: Metastore, principal: Principal) -> str:
    """The role, if the principal is one that does not exist. Of users and groups a metastore knows none."""
    is_missing = principal.type == "ROLE" and principal.name not in metastore.role_names()
    return f"role {principal.name}" if is_missing else ""


def _missing_object(metastore: Metastore, on: GrantedObject) -> str:
    """The object, or the part of it, that does not exist. Of one that does not, some calls fail and some are empty."""
    if on.type == "GLOBAL":
        return ""
    if not on.table:
        return f"database {on.db}" if metastore.database(on.db) is None else ""
    name = f"{on.db}.{on.table}"
    table = metastore.table(name)
    if table is None or table.image is None:
        return f"table {name}"
    keys = [key.name.lower() for key in partition_keys(table.image)]
    if on.partition and not (len(keys) == len(on.partition) and metastore.partition(name, on.partition)):
        return f"partition {list(on.partition)} of {name}"
    return f"column {on.column} of {name}" if on.column and on.column not in (*columns_of(table.image), *keys) else ""


def _role_grant(found: Struct) -> RoleGrant:
    """Of a ``RolePrincipalGrant``."""
    return RoleGrant(
        role=field(found, 1, ""),
        principal=field(found, 2, ""),
        principal_type=_named(PRINCIPALS, field(found, 3)),
        grant_option=field(found, 4, False),
        granted_at=field(found, 5, 0),
        grantor=field(found, 6, ""),
        grantor_type=_named(PRINCIPALS, field(found, 7)),
    )


def _privilege(found: Struct) -> Privilege:
    """Of a ``HiveObjectPrivilege``."""
    principal_type = _named(PRINCIPALS, field(found, 3))
    on, name, info = _object(field(found, 1, {})), field(found, 2, ""), field(found, 4, {})
    return _granted(info, on, name, principal_type, field(found, 5, ""))


def _granted(info: Struct, on: GrantedObject, principal: str, principal_type: str, authorizer: str = "") -> Privilege:
    """Of a ``PrivilegeGrantInfo``."""
    return Privilege(
        privilege=field(info, 1, ""),
        on=on,
        principal=principal,
        principal_type=principal_type,
        grant_option=field(info, 5, False),
        granted_at=field(info, 2, 0),
        grantor=field(info, 3, ""),
        grantor_type=_named(PRINCIPALS, field(info, 4)),
        authorizer=authorizer,
    )


def _object(found: Struct) -> GrantedObject:
    """Of a ``HiveObjectRef``. A data connector is of no database."""
    kind, name = _named(OBJECTS, field(found, 1)), field(found, 3, "")
    if kind == "DATACONNECTOR":
        return GrantedObject(kind, connector=name)
    values: Sequence[str] = field(found, 4, ())
    return GrantedObject(kind, field(found, 2, ""), name, tuple(values), field(found, 5, ""))


def _catalog(found: Struct) -> str | None:
    """Of what is in no catalog, as global ones, None."""
    named: str | None = field(field(found, 1, {}), 6)
    return named


def _named(names: dict[int, str], number: int | None) -> str:
    """A number that this version does not know is given as it is."""
    return "" if number is None else names.get(number, str(number))
