"""What a sink keeps of itself, in the database of the copy: written with the rows, in one transaction.

So a kill at any moment leaves rows and checkpoint of one moment. ``version`` grows with each commit; who finds another
one than its own is not alone, and ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from serving.sink.errors import SinkError


class Copying(msgspec.Struct, frozen=True):
    """The reading of a whole table. ``page``: where it goes on. ``is_due``: it has not ended.

    ``withheld_by``: the shards that do not tell its changes. As long as there is one, it is not read.
    ``is_wanted``: this sink's settings name the table; it is read again once they do so again. ``kinds``: column →
    kind, of all columns that any shard has told of: a front describes the table as one shard has it.
    ``key``: the primary key of the copy. ``others``: shard → the key of the rows that it tells, where that is another
    one ((): it is not known). As long as there is one, its rows are passed over and the table is not read.
    """

    number: int = 0
    page: str = ""
    is_due: bool = True
    withheld_by: tuple[str, ...] = ()
    is_wanted: bool = True
    kinds: dict[str, str] = {}
    key: tuple[str, ...] = ()
    others: dict[str, tuple[str, ...]] = {}

    @property
    def is_told(self) -> bool:
        """Whether the stream tells all changes of the table, and by its key."""
        return not self.withheld_by and not self.others


_copies = msgspec.json.Decoder(dict[str, Copying])


@dataclass(frozen=True, slots=True)
class SinkState:
    """``checkpoint``: of the last event that is in the copy. ``token``: of all that is. ``copies``: by table."""

    version: int = 0
    checkpoint: str = ""
    token: str = ""
    copies: dict[str, Copying] = field(default_factory=dict)

    @property
    def due(self) -> list[str]:
        """The tables that are to be read."""
        return sorted(table for table, at in self.copies.items() if at.is_due and at.is_wanted and at.is_told)

    @property
    def withheld(self) -> list[str]:
        """The tables whose changes are not all in the stream, for now or for good."""
        return sorted(table for table, at in self.copies.items() if at.is_wanted and not at.is_told)

    def with_new(self, table: str, last: int) -> SinkState:
        """A table that is to have a copy, perhaps again. ``last``: the highest number of a reading that is in it.

        Rows of another sink would not be told from those that this one reads, nor ones of a table of that name in
        another database. That one has lost its copy.
        """
        name, before = name_in_copy(table), self.copies.get(table, Copying())
        left = {each: at for each, at in self.copies.items() if name_in_copy(each) != name}
        return replace(self, copies={**left, table: Copying(max(last, before.number))}).with_due(table)

    def with_due(self, table: str) -> SinkState:
        """Any rows of a table may have changed: it is read anew, from its beginning."""
        before = self.copies[table]
        return self.with_copy(table, msgspec.structs.replace(before, number=before.number + 1, page="", is_due=True))

    def with_withheld(self, table: str, by: Iterable[str]) -> SinkState:
        """From here on these shards do not tell a table's changes. What was missed is read once all do."""
        return self.with_copy(
            table, msgspec.structs.replace(self.copies[table], withheld_by=tuple(sorted(by)))
        ).with_due(table)

    def with_kinds(self, table: str, kinds: Mapping[str, str]) -> SinkState:
        """The columns of a table, as far as they are known."""
        return self.with_copy(table, msgspec.structs.replace(self.copies[table], kinds=dict(kinds)))

    def with_key(self, table: str, key: tuple[str, ...], shards: Iterable[str]) -> SinkState:
        """The copy has this primary key. Each of the ``shards`` goes on telling rows by the one that it told last."""
        before = self.copies[table]
        told = {shard: before.others.get(shard, before.key) for shard in shards}
        others = {shard: of for shard, of in told.items() if of not in ((), key)}
        state = self.with_copy(table, msgspec.structs.replace(before, key=key, others=others))
        return state.with_due(table) if others != before.others else state

    def with_told(self, table: str, shard: str, key: tuple[str, ...]) -> SinkState:
        """From here on a shard tells rows by this key. What was passed over is read once all do by the copy's."""
        before = self.copies[table]
        others = {each: of for each, of in before.others.items() if each != shard}
        if key != before.key:
            others[shard] = key
        if others == before.others:
            return self
        return self.with_copy(table, msgspec.structs.replace(before, others=others)).with_due(table)

    def with_copy(self, table: str, copying: Copying) -> SinkState:
        """The reading of a table has come this far."""
        return replace(self, copies={**self.copies, table: copying})


def name_in_copy(table: str) -> str:
    """What two tables must not share to have copies in one database, some of which know no capital letters."""
    return table.partition(".")[2].casefold()


STATE_NAME: Final = "freshet_sink"


class StateTable:
    """The table `STATE_NAME`: a row for each keyspace."""

    def __init__(self, metadata: sa.MetaData, keyspace: str) -> None:
        long = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
        self._keyspace = keyspace
        self._table = sa.Table(
            STATE_NAME,
            metadata,
            sa.Column("keyspace", sa.String(150), primary_key=True),
            sa.Column("version", sa.BigInteger(), nullable=False),
            sa.Column("checkpoint", long, nullable=False),
            sa.Column("token", long, nullable=False),
            sa.Column("copies", long, nullable=False),
        )

    def load(self, engine: sa.Engine) -> SinkState:
        """The last state. The table is made if it is missing."""
        self._table.create(engine, checkfirst=True)
        with engine.begin() as connection:
            row = connection.execute(sa.select(self._table).where(self._is_own)).mappings().one_or_none()
            if row is None:
                connection.execute(self._table.insert().values(keyspace=self._keyspace, **_fields(SinkState())))
                return SinkState()
        copies = _copies.decode(row["copies"])
        return SinkState(row["version"], row["checkpoint"], row["token"], copies)

    def taken_elsewhere(self, engine: sa.Engine) -> dict[str, str]:
        """Name in the copy → keyspace, of the tables that the sinks of other keyspaces have in this database."""
        with engine.connect() as connection:
            rows = connection.execute(sa.select(self._table.c.keyspace, self._table.c.copies).where(~self._is_own))
            copies = [(keyspace, _copies.decode(text)) for keyspace, text in rows]
        return {name_in_copy(table): keyspace for keyspace, of in copies for table, at in of.items() if at.is_wanted}

    def save(self, connection: sa.Connection, state: SinkState) -> SinkState:
        """Replaces the state that ``state`` came from; the one that is there now. Raises `SinkError` ``sink_taken``."""
        after = replace(state, version=state.version + 1)
        changed = connection.execute(
            self._table.update().where(self._is_own, self._table.c.version == state.version).values(_fields(after))
        )
        if changed.rowcount != 1:
            raise SinkError(
                f"another process has written to the copy of {self._keyspace}",
                hint="run one sink for a keyspace and a database",
                code="sink_taken",
            )
        return after

    @property
    def _is_own(self) -> sa.ColumnElement[bool]:
        return self._table.c.keyspace == self._keyspace


def _fields(state: SinkState) -> dict[str, Any]:
    copies = msgspec.json.encode(state.copies).decode()
    return {"version": state.version, "checkpoint": state.checkpoint, "token": state.token, "copies": copies}
