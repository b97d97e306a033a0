"""The shards of a keyspace in the settings: names alone, or ranges of keys, each with a server of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, SecretStr, Tag

from freshet.sections.values import Addresses, Host, Port, Section, Shard
from freshet.settings_errors import parse_object, split_list

if TYPE_CHECKING:
    from stream.shards.map import ShardMap


class ShardSettings(Section):
    """The server of a shard. What is left out is as in the keyspace's ``source``. ``name`` defaults to
    ``<keyspace>/<range>``. ``succeeds``: the shards whose keys, or some of them, it takes over, where they end."""

    name: Shard | None = None
    host: Host | None = None
    port: Port | None = None
    user: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    password: SecretStr | None = None
    ssl_ca: Annotated[str, Field(max_length=1_000)] | None = None
    ssl_verify_host: bool | None = None
    ssl_cert: Annotated[str, Field(max_length=1_000)] | None = None
    ssl_key: Annotated[str, Field(max_length=1_000)] | None = None
    replicas: Addresses | None = None
    server_id: Annotated[int, Field(ge=1, le=2**32 - 1)] | None = None
    succeeds: Annotated[list[Shard], Field(max_length=1_024)] = Field(default_factory=list)

    def own(self) -> dict[str, Any]:
        """What it says of its server, in place of the keyspace's source."""
        return {field: value for field in OWN if (value := getattr(self, field)) is not None}


OWN = frozenset(ShardSettings.model_fields) - {"name", "succeeds"}
"""The settings of a source that a shard may have for itself."""
Ranges = dict[str, ShardSettings]
"""Range as text → the shard that has it."""


def _read(value: Any) -> Any:
    """A list or a table that is given as text."""
    is_table = isinstance(value, str) and value.lstrip().startswith("{")
    return parse_object(value) if is_table else split_list(value)


def _checked(ranges: Ranges) -> Ranges:
    """Refuses ranges that are no map. Raises ``ValueError``."""
    from stream.shards.map import ShardMap

    ShardMap.parse({text: text for text in ranges})
    return ranges


def _form(value: Any) -> str:
    return "ranges" if isinstance(value, Mapping) else "names"


Shards = Annotated[
    Annotated[Annotated[list[Shard], Field(max_length=1_024)], Tag("names")]
    | Annotated[Annotated[Ranges, Field(min_length=1, max_length=1_024), AfterValidator(_checked)], Tag("ranges")],
    Discriminator(_form),
    BeforeValidator(_read),
]


def names_of(keyspace: str, ranges: Ranges) -> dict[str, str]:
    """Name of each shard → the range as it is written in the settings."""
    from stream.shards.map import IdRange

    return {each.name or f"{keyspace}/{IdRange.parse(text)}": text for text, each in ranges.items()}


def map_of(keyspace: str, ranges: Ranges) -> ShardMap:
    """The map of a keyspace. Raises `ShardMapError` if two shards have one name."""
    from stream.shards.map import IdRange, ShardMap

    named = ((each.name or f"{keyspace}/{IdRange.parse(text)}", IdRange.parse(text)) for text, each in ranges.items())
    return ShardMap(named)
