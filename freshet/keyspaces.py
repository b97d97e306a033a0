"""How a keyspace is named, and the errors that a misspelled one causes: which names are known."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from freshet.sections.sources import MariaDBSourceSettings
from freshet.settings import Settings
from freshet.settings_errors import unknown_keyspace
from tokens.errors import FreshetError

MISSING = frozenset({"topic_missing", "owner_unknown"})
"""The codes that a misspelled name leads to. A keyspace with a topic needs no settings, so its name is not checked."""


AsArgument = Annotated[str, typer.Argument(metavar="KEYSPACE", help="The keyspace.", show_default=False)]
AsOption = Annotated[str, typer.Option("--keyspace", help="The same, as an option.", show_default=False)]


def one_keyspace(argument: str, option: str) -> str:
    """The keyspace: the first argument, as of all commands that work on one, or an option. Raises for wrong usage."""
    if bool(argument) == bool(option):
        raise typer.BadParameter("name one keyspace, as the first argument")
    return argument or option


@contextlib.contextmanager
def explain_unknown_keyspace(settings: Settings, keyspace: str) -> Iterator[None]:
    """Turns an error of `MISSING` into `SettingsError` ``unknown_keyspace`` if the settings have only other keyspaces.

    The message includes the original error's.
    """
    try:
        yield
    except FreshetError as error:
        if error.code not in MISSING or keyspace in settings.keyspaces or not settings.keyspaces:
            raise
        raise unknown_keyspace(keyspace, settings.keyspaces, also=str(error), hint=error.hint) from error


def shards_in(settings: Settings, keyspace: str) -> list[str]:
    """The shards that publish in a keyspace's topic, those that have a source elsewhere too; not those that are over.

    Raises `SettingsError`.
    """
    known = settings.shard_map(keyspace)
    if known is not None:
        return [*known.shards]
    return [settings.shard_of(keyspace), *settings.keyspace(keyspace).shards]


def full_table_name(settings: Settings, keyspace: str, table: str) -> str:
    """``db.table``, also for a table without ``db`` if the settings name one database, as for the front."""
    found = settings.keyspaces.get(keyspace)
    source = found.source if found is not None else None
    if "." in table or not isinstance(source, MariaDBSourceSettings) or len(source.databases) != 1:
        return table
    return f"{source.databases[0]}.{table}"
