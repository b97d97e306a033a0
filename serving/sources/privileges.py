"""Roles and privileges as a front reads them at the source of truth: the interface, and its values."""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from serving.client.privileges.answers import GrantedObject, PrincipalType, Privilege, RoleGrant
from tokens import Position

Found = TypeVar("Found")


class Principal(NamedTuple):
    """Who has roles and privileges."""

    name: str
    type: PrincipalType


class Member(NamedTuple):
    """A user ("": none) and the groups that it is in, as they act: with all roles that they have."""

    user: str
    groups: tuple[str, ...]


class SourcePrivileges(NamedTuple, Generic[Found]):
    """The source's answer, read after ``position``. ``missing``: a role or object of the question that is not there.

    ``hi``: nothing that the log tells of its objects is later; None: it is of none. What the answer itself says has no
    position.
    """

    found: list[Found]
    position: Position
    hi: Position | None = None
    missing: str = ""


@runtime_checkable
class PrivilegeSource(Protocol):
    """A `serving.sources.source.TableSource` that has roles and privileges. Raises as `RowSource`."""

    @property
    def shard(self) -> str:
        """The shard that its positions belong to."""

    async def read_roles(self) -> SourcePrivileges[str]:
        """The names of all roles."""

    async def read_role_principals(self, role: str) -> SourcePrivileges[RoleGrant]:
        """Who has a role."""

    async def read_roles_of(self, principal: Principal) -> SourcePrivileges[RoleGrant]:
        """The roles that a principal has directly."""

    async def read_privileges(
        self, of: Principal | Member, on: GrantedObject | None, known: str = ""
    ) -> SourcePrivileges[Privilege]:
        """The direct privileges of a principal, or all of a member. ``on`` None: on everything, of a principal only.

        ``known``: what the session has seen of the log; if nothing of the object is later, that is ``hi``.
        """
