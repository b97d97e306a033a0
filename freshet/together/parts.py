"""What ``freshet up`` runs: one part for each source of the settings, one consumer, one front. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freshet.settings import Settings
from freshet.settings_errors import SettingsError, unknown_keyspace


@dataclass(frozen=True, slots=True)
class Part:
    """One process. ``arguments``: those of ``freshet``. ``needed``: if its first start fails, nothing can be served."""

    name: str
    arguments: tuple[str, ...]
    needed: bool = False
    environment: tuple[tuple[str, str], ...] = ()


def parts_of(settings: Settings, keyspaces: Sequence[str], workers: str | None, port: int | None) -> list[Part]:
    """The parts for ``keyspaces`` (none: all of the settings), in the order in which they are started.

    ``workers`` and ``port`` stand for ``consumer.workers`` and ``serve.port``. Raises `SettingsError`.
    """
    names = list(dict.fromkeys(keyspaces or settings.keyspaces))
    if not names:
        raise SettingsError(
            "no keyspace is configured",
            hint="add [keyspaces.<name>] to the settings file, or try it out: freshet up --local",
        )
    for name in names:
        if name not in settings.keyspaces:
            raise unknown_keyspace(name, settings.keyspaces)
    sources = [part for name in names for part in _sources(settings, name)]
    if len(sources) > 1 and settings.source.metrics_port:  # one port can't be all sources'
        any_port = (("FRESHET_SOURCE__METRICS_PORT", "0"),)
        sources[1:] = [Part(each.name, each.arguments, environment=any_port) for each in sources[1:]]
    consume = ["consume", *(f"--keyspace={name}" for name in names if keyspaces)]
    serve = ["serve"]
    if workers is not None:
        consume.append(f"--workers={workers}")
    if port is not None:
        serve.append(f"--port={port}")
    return [*sources, Part("consume", tuple(consume), needed=True), Part("serve", tuple(serve), needed=True)]


def _sources(settings: Settings, keyspace: str) -> list[Part]:
    source = settings.keyspaces[keyspace].source
    if source is None:  # another machine publishes it
        return []
    shards = settings.shards_of(keyspace)
    command = ("source", source.kind, f"--keyspace={keyspace}")
    if len(shards) == 1:
        return [Part(f"source {keyspace}", command)]
    return [Part(f"source {shard}", (*command, f"--shard={shard}")) for shard in shards]
