"""The owner protocol: roles and keyspaces of a front's or a command's token, while it is connected."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.owner.client import Identity, OwnerClient
from consumers.owner.protocol import Fill, OwnerError, Request
from freshet.settings import ConsumerSettings
from stream.access.grants import Access, Credential, Grant, digest_of
from tests.consumers.histories import key, marker, start, value
from tests.consumers.owning import KEYSPACE, Owner, vector


def owner_of(place: Path, *grants: Grant) -> Owner:
    """An owner whose tokens are the names of the grants."""
    owner = Owner(place)
    owner.server.access.replace(Credential(each, digest_of(each.name.encode())) for each in grants)
    owner.fold(start(), value(1, b"{}", 1), marker(1))
    return owner


def fill() -> Request:
    """An offer; whether it is taken does not matter."""
    return Fill(0, KEYSPACE, 0, key(2), None, "MariaDB/0-1-1", "MariaDB/0-1-1", 1, b"")


NOT_ALL = dict.fromkeys(("all", "all checkpoints", "any table"), "forbidden")
"""A request that names no keyspace is about all of them."""


async def code_of(client: OwnerClient, request: str) -> str:
    """The code of the refusal of a request; "" if it is answered."""
    try:
        match request:
            case "get":
                await client.get(KEYSPACE, 0, [key(1)], vector(1))
            case "fill":
                await client.fill(fill())  # type: ignore[arg-type]
            case "checkpoint":
                await client.checkpoint(KEYSPACE)
            case "status":
                await client.status(KEYSPACE)
            case "all":
                await client.status()
            case "all checkpoints":
                await client.checkpoint("")
            case "any table":
                await client.describe("", "db.t")
    except OwnerError as error:
        return error.code
    return ""


@pytest.mark.parametrize(
    ("grant", "refused"),
    [
        (Grant("admin", frozenset({"admin"})), {}),
        (Grant("front", frozenset({"read", "fill"})), dict.fromkeys(("checkpoint", "all checkpoints"), "forbidden")),
        (Grant("reader", frozenset({"read"})), dict.fromkeys(("fill", "checkpoint", "all checkpoints"), "forbidden")),
        (
            Grant("other", frozenset({"read", "fill", "admin"}), frozenset({"bank"})),
            {**dict.fromkeys(("get", "fill", "checkpoint", "status"), "not_owner"), **NOT_ALL},
        ),
        (Grant("own", frozenset({"admin"}), frozenset({KEYSPACE})), NOT_ALL),
    ],
    ids=lambda each: each.name if isinstance(each, Grant) else "",
)
def test_roles_hold_on_the_owner_protocol(tmp_path: Path, grant: Grant, refused: dict[str, str]) -> None:
    """Fills and checkpoints need their roles; another keyspace is as one that is not here."""
    owner = owner_of(tmp_path, grant)

    async def use(client: OwnerClient) -> None:
        found = {each: await code_of(client, each) for each in ("get", "fill", "checkpoint", "status", *NOT_ALL)}
        assert {each: code for each, code in found.items() if code} == refused

    owner.run(use, identity=Identity(lambda: grant.name))


def test_a_token_that_was_taken_away_ends_with_the_next_request(tmp_path: Path) -> None:
    """The front connects again by itself, with the token that it has by then."""
    old, new = (Grant(name, frozenset({"read"})) for name in ("old", "new"))
    owner, shown = owner_of(tmp_path, old), ["old"]

    async def use(client: OwnerClient) -> None:
        assert await code_of(client, "get") == ""
        owner.server.access.replace([Credential(new, digest_of(b"new"))])
        assert await code_of(client, "get") == "unauthorized"
        shown[0] = "new"
        codes = [await code_of(client, "get") for _ in range(3)]
        assert codes[-1] == ""

    owner.run(use, identity=Identity(lambda: shown[0]))


@pytest.mark.parametrize("role", ["read", "admin"])
def test_a_secret_that_a_front_shows_gives_what_its_token_says(role: str) -> None:
    """A file of settings that a front shares with its owners makes the front no administrator of them."""
    shared = ConsumerSettings.model_validate(
        {"owner_token": "secret", "tokens": {"front": {"hash": digest_of(b"secret"), "roles": [role]}}}
    )
    assert Access(shared.credentials).of(b"secret") == Grant("front", frozenset({role}))
    alone = ConsumerSettings.model_validate({"owner_token": "secret"})
    assert Access(alone.credentials).of(b"secret").may("admin")
