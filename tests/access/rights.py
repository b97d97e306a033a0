"""The rights at Kafka that docs/operating/security.md names, as its commands give them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

PAGE: Final = Path(__file__).parents[2] / "docs/operating/security.md"
USERS: Final = ("source", "consumer", "front", "spark", "operator")
KINDS: Final = {"--topic": "TOPIC", "--group": "GROUP", "--transactional-id": "TRANSACTIONAL_ID"}


def rights() -> list[AclBinding]:
    """Those of the page, one for each operation of each line."""
    found = []
    for line in re.findall(r"^acl (.*)$", PAGE.read_text(), re.MULTILINE):
        words = shlex.split(line)
        given = list(zip(words[::2], words[1::2], strict=True))
        one = dict(given)
        [kind] = KINDS.keys() & one.keys()
        pattern = one.get("--resource-pattern-type", "literal").upper()
        for name, operation in given:
            if name == "--operation":
                shouted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()
                found.append(
                    AclBinding(
                        ResourceType[KINDS[kind]],
                        one[kind],
                        ResourcePatternType[pattern],
                        one["--allow-principal"],
                        "*",
                        AclOperation[shouted],
                        AclPermissionType.ALLOW,
                    )
                )
    return found


def user_of(right: AclBinding) -> str:
    """Whose it is."""
    return str(right.principal).removeprefix("User:")


def give(admin: AdminClient, given: Iterable[AclBinding]) -> None:
    """Adds rights."""
    for done in admin.create_acls(list(given)).values():
        done.result(60)


def take(admin: AdminClient, right: AclBinding) -> None:
    """Takes one right away."""
    pattern = AclBindingFilter(
        right.restype,
        right.name,
        right.resource_pattern_type,
        right.principal,
        right.host,
        right.operation,
        right.permission_type,
    )
    [done] = admin.delete_acls([pattern]).values()
    assert done.result(60)
