"""The indexes that a consumer keeps: those that the settings name, and those that it learns from the source."""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog

from consumers.store.errors import store_error
from consumers.store.index import Index
from consumers.store.manifest import write_atomically
from freshet.sections.sources import MariaDBSourceSettings, SourceSettings
from freshet.settings import Settings
from stream.sources.learnt_indexes import LearntIndex, learnt_indexes
from stream.sources.mariadb.charsets import read_charsets
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError, connect, translated
from stream.sources.mariadb.information_schema.tables import read_tables
from stream.sources.mariadb.schema import TableFilter

log = structlog.get_logger(__name__)
_learnt = msgspec.json.Decoder(list[LearntIndex])


def indexes_to_keep(settings: Settings, name: str) -> tuple[Index, ...]:
    """Those of a keyspace. What was learnt last is kept in the data directory, for when the source does not answer.

    Raises `SettingsError`, `StoreError` if that can't be written.
    """
    chosen = settings.keyspaces[name]
    if not chosen.learns_indexes:
        return chosen.row_indexes
    path = settings.data_dir / f"{name}.indexes"
    try:
        learnt = _learn(settings.source_of(name, settings.shards_of(name)[0]))
    except MariaDBError as error:
        learnt = _kept(path)
        log.warning(
            "the source did not tell its indexes", keyspace=name, kept=len(learnt), code=error.code, reason=str(error)
        )
    else:
        _keep(path, learnt)
    for each in learnt:
        if each.refused:
            columns = ", ".join(each.columns)
            log.info("index not kept", index=each.name, table=each.table, columns=columns, reason=each.refused)
    found = [Index(each.table, each.columns) for each in learnt if not each.refused]
    return tuple(dict.fromkeys((*chosen.row_indexes, *found)))


def _learn(source: SourceSettings | None) -> list[LearntIndex]:
    """Raises `MariaDBError`."""
    from freshet.commands.source import server_of, table_filter

    if not isinstance(source, MariaDBSourceSettings):
        return []
    return learnt_at(server_of(source), table_filter(source))


def learnt_at(server: ConnectionSettings, tables: TableFilter) -> list[LearntIndex]:
    """The indexes of the tables that a source publishes. Raises `MariaDBError`."""
    connection = connect(server)
    try:
        with translated(server):
            found = read_tables(connection, read_charsets(connection), tables)
    finally:
        connection.close()
    return [index for _, info in sorted(found.items()) for index in learnt_indexes(info.describe(), info.indexes)]


def _keep(path: Path, learnt: list[LearntIndex]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.encode(learnt))
    except OSError as error:
        raise store_error(error, str(path)) from error


def _kept(path: Path) -> list[LearntIndex]:
    try:
        return _learnt.decode(path.read_bytes())
    except (OSError, ValueError):
        return []
