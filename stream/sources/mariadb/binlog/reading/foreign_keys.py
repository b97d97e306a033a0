"""What foreign keys changed without logging it becomes void: at a statement's end, or at DDL of a backlog."""

from __future__ import annotations

from typing import Final

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.mysql import events as mysql_events
from stream.sources.mariadb.binlog.reading.transaction import OpenTransaction
from stream.sources.mariadb.binlog.statements import Statement
from stream.sources.mariadb.binlog.unlogged import StatementTables
from stream.sources.mariadb.cascades.family import Family
from stream.sources.mariadb.cascades.foreign_keys import Cascades
from stream.sources.mariadb.gtid import Gtid, GtidPosition
from stream.sources.mariadb.live_schema import LiveSchema

_OF_BEFORE: Final = "a foreign key of before this DDL, which is not known, may have changed rows"


class ForeignKeys:
    """The tables of the current statement, and the rows that foreign keys may change.

    ``family``: what is known of those rows; None: their tables are void.
    """

    def __init__(self, schema: LiveSchema, family: Family | None) -> None:
        self._schema = schema
        self.family = family
        self.statement = StatementTables()
        self._looked_at: Cascades | None = None
        """The foreign keys that ``family`` has taken up."""

    def begin_transaction(self) -> None:
        """Forget what rows without a commit have said, and take up foreign keys that are new."""
        if self._schema.unread:
            self._schema.reread_unread()
        if self.family is not None:
            self.family.discard()
            if self._looked_at is not self._schema.cascades:
                self.look()

    def look(self) -> None:
        """Take up the foreign keys and the tables of now."""
        self._looked_at = self._schema.cascades
        if self.family is not None:
            self.family.look_at(self._looked_at, self._schema.catalog.get)

    def look_again(self) -> None:
        """Have the next transaction take up the tables: one is not as it was."""
        self._looked_at = None

    def discard(self) -> None:
        """What the transaction's rows said of foreign keys does not count."""
        if self.family is not None:
            self.family.discard()

    def end_statement(self, transaction: OpenTransaction, position: GtidPosition, flags: int) -> None:
        """Void what the statement may have changed by foreign keys without logging it.

        ``position``: before the transaction. ``flags``: of the statement's last rows.
        """
        statement, voids = self.statement, transaction.voids if self.family is None else {}
        if type(transaction.gtid) is Gtid:
            statement.end(self._schema.cascades, voids)
            if self._schema.unread:
                statement.end_unread(self._schema.unread, self._schema.cascades, voids)
        elif not flags & mysql_events.SQL_FOREIGN_KEYS:  # else their rows are logged
            statement.end_unnamed(self._schema.cascades, self._schema.catalog.names, voids)
        if self.family is not None:
            if voids:
                self._void_rows(self.family, transaction, voids, position, flags)
            self.family.clear()
        statement.clear()

    def before_ddl(self, statement: Statement, transaction: OpenTransaction, position: GtidPosition) -> None:
        """Void what is below the tables that DDL names, unless the foreign keys of ``position`` are known.

        A backlog may have deleted rows by others, which this one takes away or leads to another name: those of now lead
        only on from there. MariaDB's log named the tables that were changed, MySQL's did not.
        """
        schema, effect = self._schema, statement.effect
        if effect not in ("tables", "database") or type(transaction.gtid) is Gtid or schema.has_cascades_of(position):
            return
        names = {".".join(name) for name in statement.tables}  # "d." is a database
        if schema.lower_case_names:
            names = {name.lower() for name in names}
        for parent in {key.parent for key in schema.cascades.keys}:
            if parent in names or (effect == "database" and parent.startswith(tuple(names))):
                for child in schema.cascades.below(parent) & schema.catalog.names:
                    transaction.voids.setdefault(child, _OF_BEFORE)

    def _void_rows(
        self, family: Family, transaction: OpenTransaction, voids: dict[str, str], position: GtidPosition, flags: int
    ) -> None:
        """Void the rows that foreign keys changed in the tables of ``voids``, or the table if they are not known."""
        found: dict[str, set[bytes]] = {}
        is_whole = flags & events.STATEMENT_END and not self.statement.are_checks_mixed
        if is_whole and self._schema.has_cascades_of(position):
            is_enforced = not flags & events.NO_FOREIGN_KEYS
            found = family.narrow(voids, self.statement.changed, transaction.voids, is_enforced=is_enforced)
        for table, reason in voids.items():
            if table not in found:
                transaction.voids.setdefault(table, reason)
        for table, keys in found.items():
            transaction.touched.add(table)
            try:
                for key in keys:
                    transaction.rows.void(key)
            except OSError as error:
                transaction.lose_rows(error)
