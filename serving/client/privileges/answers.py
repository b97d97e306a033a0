"""The answers about roles and privileges of a catalog's metastore."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..answers import FreshnessName, ServedFrom

PrincipalType = Literal["USER", "ROLE", "GROUP"]


class RoleGrant(msgspec.Struct, frozen=True):
    """A principal's part in a role. ``principal_type``, ``grantor_type``: USER, ROLE or GROUP.

    ``grant_option``: it may give the role to others. ``granted_at``: seconds since 1970; 0, and no grantor: it was not
    granted, as each user has the role ``public``.
    """

    role: str
    principal: str
    principal_type: str
    grant_option: bool
    granted_at: int
    grantor: str
    grantor_type: str


class GrantedObject(msgspec.Struct, omit_defaults=True, frozen=True):
    """What a privilege is on. ``type``: GLOBAL (no object), DATABASE, TABLE, PARTITION, COLUMN, DATACONNECTOR.

    ``partition``: its values; of a column, if it is one of a partition.
    """

    type: str
    db: str = ""
    table: str = ""
    partition: tuple[str, ...] = ()
    column: str = ""
    connector: str = ""


class Privilege(msgspec.Struct, frozen=True):
    """What a principal may do with an object. The rest is as of a `RoleGrant`.

    ``authorizer``: whose rules it is one of, as the metastore says; "" in an effective set, which does not tell it.
    """

    privilege: str
    on: GrantedObject
    principal: str
    principal_type: str
    grant_option: bool
    granted_at: int
    grantor: str
    grantor_type: str
    authorizer: str = ""


class RolesAnswer(msgspec.Struct, frozen=True):
    """The names of all roles."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    roles: list[str]


class RoleGrantsAnswer(msgspec.Struct, omit_defaults=True, frozen=True):
    """Who has a role, or which roles a principal has. ``code``: ``not_found`` if there is no such role."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    grants: list[RoleGrant]
    code: str = ""
    message: str = ""
    hint: str = ""


class PrivilegesAnswer(msgspec.Struct, omit_defaults=True, frozen=True):
    """Privileges. ``code``: ``not_found`` if there is no such object or role."""

    served_from: ServedFrom
    freshness: FreshnessName
    why: str
    token: str
    privileges: list[Privilege]
    code: str = ""
    message: str = ""
    hint: str = ""
