"""The statements in the log: DDL, ends of XA transactions, and changes that are logged as statements."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import structlog

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.catalog import Xid
from stream.sources.mariadb.binlog.reading.foreign_keys import ForeignKeys
from stream.sources.mariadb.binlog.reading.table_maps import TableMaps
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.binlog.statements import Statement, classify
from stream.sources.mariadb.gtid import MysqlGtid
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.schema import TableInfo
from stream.wire.events import EVERY_TABLE

log = structlog.get_logger(__name__)

_OF_BEFORE: Final = "XA COMMIT of a transaction that was prepared before this source started"


class LoggedStatements:
    """Voids and describes what statements change."""

    def __init__(self, schema: LiveSchema, maps: TableMaps, keys: ForeignKeys) -> None:
        self._schema = schema
        self._maps = maps
        self._keys = keys
        self._prepared: dict[Xid, frozenset[str]] = {}
        """XA transactions → the tables that their rows, which are not published, have changed."""
        self._unsure: set[str] = set()
        """Tables that a statement which was not understood may have dropped, or made anew."""

    def classified(self, query: events.Query) -> Statement:
        """What a statement does, by its text."""
        charset = self._schema.charsets.by_collation.get(query.collation, "")
        decode = bytes.decode if query.sql.isascii() else self._schema.charsets.decoder(charset)
        if decode is None:
            return Statement("all", reason=f"a statement in character set {charset or 'unknown'}")
        if not query.sql.isascii() and not charset.startswith("utf8") and _is_utf8(query.sql):
            # A server writes some of it itself, as CREATE OR REPLACE TABLE … SELECT, and that in UTF-8 for any client.
            return Statement("all", reason=f"a statement in character set {charset}, or UTF-8")
        try:
            return classify(decode(query.sql), query.database)
        except UnicodeDecodeError:
            return Statement("all", reason="a statement whose text cannot be decoded")

    def apply(self, statement: Statement, transaction: OpenTransaction) -> None:
        """Void and describe what ``statement`` changes; nothing if it only begins or ends a transaction."""
        effect = statement.effect
        if effect in ("xa_commit", "xa_rollback"):
            self._xa_end(transaction, statement)
        elif effect == "tables":
            if not (statement.if_missing and self._is_there(statement.tables[0], transaction)):
                self._ddl(transaction, statement)
        elif effect == "none":
            recomputed = tuple(filter(self._is_recomputed, statement.tables))
            if recomputed:
                self._ddl(transaction, replace(statement, tables=recomputed))
        elif effect == "database":
            self._drop_database(transaction, statement)
        elif effect == "all":
            log.warning("everything is void", reason=statement.reason, gtid=transaction.gtid.bare)
            transaction.voids.setdefault(EVERY_TABLE, statement.reason)
            self._unsure.update(self._schema.catalog.names)
            self._schema.reread_cascades()

    def _may_include(self, database: str) -> bool:
        """Whether a database, named as somebody typed it, may have tables that are published."""
        include = self._schema.include
        return include.may_include(database) or (
            self._schema.lower_case_names and include.may_include(database.lower())
        )

    def _drop_database(self, transaction: OpenTransaction, statement: Statement) -> None:
        """Its tables are gone, as by a DROP of each. So are foreign keys of those that are not published."""
        dropped = statement.tables[0][0]
        if not self._may_include(dropped):
            return
        tables = [name for name in self._schema.catalog.present if self._is_same(name[0], dropped)]
        if tables:
            self._maps.forget_all()
        for database, table in tables:
            self._schema.reread(database, table)
            transaction.voids.setdefault(f"{database}.{table}", statement.reason)
            transaction.described.add(f"{database}.{table}")
        self._schema.reread_cascades()

    def _is_same(self, database: str, typed: str) -> bool:
        return database == typed or (self._schema.lower_case_names and database.lower() == typed.lower())

    def _is_recomputed(self, name: tuple[str, str]) -> bool:
        """Whether a copy of the table may change its rows."""
        info = self._known(name)
        return info is not None and info.is_recomputed

    def _is_there(self, name: tuple[str, str], transaction: OpenTransaction) -> bool:
        """Whether a table is known to be there already. MariaDB logs no CREATE of such a one, so it was made anew."""
        info = self._known(name)
        is_known = info is not None and bool(info.columns) and info.name not in self._unsure
        return isinstance(transaction.gtid, MysqlGtid) and is_known

    def _known(self, name: tuple[str, str]) -> TableInfo | None:
        full_name = ".".join(name)
        return self._schema.catalog.get(full_name.lower() if self._schema.lower_case_names else full_name)

    def _ddl(self, transaction: OpenTransaction, statement: Statement) -> None:
        names = list(statement.tables)
        if self._schema.lower_case_names:
            names = [(database.lower(), table.lower()) for database, table in names]
        others, names = names, [name for name in names if self._schema.include(*name)]
        if not names:
            self._reread_cascades(transaction, {".".join(name) for name in others})
            return
        self._maps.forget_all()
        self._schema.after_ddl(names)
        self._unsure.difference_update(".".join(name) for name in names)
        for database, table in names:
            transaction.voids.setdefault(f"{database}.{table}", statement.reason)
            transaction.described.add(f"{database}.{table}")

    def _reread_cascades(self, transaction: OpenTransaction, others: set[str]) -> None:
        """After DDL of other tables: their foreign keys may lead to these. MariaDB's log names those, MySQL's not.

        One between two of these may have another name now, and what is below it is known by its name.
        """
        if isinstance(transaction.gtid, MysqlGtid) or self._schema.cascades.tables & others:
            self._schema.reread_cascades(others)

    def prepared(self, xid: Xid, names: frozenset[str]) -> None:
        """Remember the tables that an XA transaction changes once it is committed."""
        self._prepared[xid] = names

    def _xa_end(self, transaction: OpenTransaction, statement: Statement) -> None:
        names = self._prepared.pop(statement.xid, None)
        if statement.effect == "xa_rollback":
            return
        if names is None:
            log.warning("everything is void", reason="XA COMMIT of a transaction prepared before the source started")
            transaction.voids[EVERY_TABLE] = _OF_BEFORE
        for name in names or ():
            transaction.voids.setdefault(name, "XA COMMIT: its rows were logged at XA PREPARE")
        self._hold(transaction, names, statement.xid)

    def _hold(self, transaction: OpenTransaction, names: frozenset[str] | None, xid: Xid) -> None:
        """Have tables read through until reads see the transaction. The log has it first, so positions prove nothing.

        The void that follows then is newer than any read that did not see it. ``names``: None for all.
        """
        catalog = self._schema.catalog
        if self._schema.is_visible(xid):
            return
        held = sorted(catalog.names if names is None or EVERY_TABLE in names else catalog.names & names)
        catalog.hold(held, xid)
        self._keys.look_again()
        self._maps.forget_tables()
        transaction.described.update(held)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
