"""A client of a real Hive Metastore for tests: it does what an engine does, and asks what an engine asks."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from stream.sources.hive.live.metastore import CAPABILITIES, Metastore, MetastoreSettings, client_capabilities
from stream.sources.hive.rpc.connection import MetastoreConnection
from stream.sources.hive.rpc.thrift import field, integer, long, record, text, texts
from stream.sources.hive.structs import BOOL, I64, LIST, MAP, STRING, STRUCT, ListValue, MapValue, Struct
from tokens import ValidWriteIdList

ORC = "org.apache.hadoop.hive.ql.io.orc."


class HiveCatalog:
    """One client. ``db``: the database of its tables, made if absent. Not safe for several threads."""

    def __init__(self, address: tuple[str, int], db: str) -> None:
        self.address, self.db = address, db
        self.calls = MetastoreConnection((address,), timeout_s=120)
        self.metastore = Metastore(MetastoreSettings((address,), timeout_s=120))
        if db not in self.calls.call("get_databases", {1: text("@hive#")}):
            self.calls.call("create_database", {1: record({1: text(db)})})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.calls.close()
        self.metastore.close()

    def create(self, table: str, *, transactional: bool = True, partitioned: bool = False, **parameters: str) -> int:
        """Create ``db.table``, transactional or external, maybe partitioned by ``p``; its id."""
        columns = (LIST, ListValue(STRUCT, [{1: text("a"), 2: text("int"), 3: text("the column")}]))
        serde = record({1: text(table), 2: text(f"{ORC}OrcSerde"), 3: mapping({})})
        formats = {3: text(f"{ORC}OrcInputFormat"), 4: text(f"{ORC}OrcOutputFormat")}
        kind = {"transactional": "true"} if transactional else {"EXTERNAL": "TRUE"}
        struct: Struct = {
            1: text(table),
            2: text(self.db),
            3: text("tester"),
            7: record({1: columns, **formats, 7: serde}),
            8: (LIST, ListValue(STRUCT, [{1: text("p"), 2: text("string")}] if partitioned else [])),
            9: mapping(parameters | kind),
            12: text("MANAGED_TABLE" if transactional else "EXTERNAL_TABLE"),
        }
        self.calls.call("create_table_req", {1: record({1: record(struct), 9: texts([*CAPABILITIES])})})
        return self.table_id(table)

    def struct(self, table: str) -> Struct:
        """The Thrift ``Table``."""
        request: Struct = {1: text(self.db), 2: text(table), 3: client_capabilities(), 4: text("hive")}
        request[8] = texts([*CAPABILITIES])
        answer = self.calls.call("get_table_req", {1: record(request)})
        found: Struct = field(answer, 1)
        return found

    def table_id(self, table: str) -> int:
        """The table's id."""
        table_id: int = field(self.struct(table), 25)
        return table_id

    def alter(
        self, table: str, write_id: int = -1, *, rename_to: str = "", add_column: str = "", **parameters: str
    ) -> None:
        """Set parameters, name or columns of a table; inside a transaction with the ``write_id`` that it holds."""
        struct = self.struct(table)
        if add_column:
            struct[7][1][1][1].values.append({1: text(add_column), 2: text("int")})
        struct[9] = mapping({**field(struct, 9), **parameters})
        struct[1] = text(rename_to or table)
        struct[19] = long(write_id)  # what the event tells; the request's own writeId is not read
        request: Struct = {
            1: text("hive"),
            2: text(self.db),
            3: text(table),
            4: record(struct),
            8: texts([*CAPABILITIES]),
        }
        if write_id > 0:
            request[7] = text(f"{self.db}.{table}:{write_id}:9223372036854775807::")
        self.calls.call("alter_table_req", {1: record(request)})

    def add_partitions(self, table: str, *values: str) -> None:
        """Add partitions by the values of their key."""
        added: list[Struct] = []
        for value in values:
            storage = {**self.struct(table)[7][1]}
            storage[2] = text(f"{field(storage, 2)}/p={value}")
            added.append({1: texts([value]), 2: text(self.db), 3: text(table), 6: record(storage), 7: mapping({})})
        self.calls.call("add_partitions", {1: (LIST, ListValue(STRUCT, added))})

    def drop_partition(self, table: str, value: str) -> None:
        """Drop a partition."""
        self.calls.call("drop_partition", {1: text(self.db), 2: text(table), 3: texts([value]), 4: (BOOL, False)})

    def set_statistics(self, table: str, nulls: int, value: str = "", write_id: int = 0) -> None:
        """Set the statistics of the column ``a``, of the table or of a partition by its key's value."""
        described: Struct = {1: (BOOL, not value), 2: text(self.db), 3: text(table)}
        if value:
            described[4] = text(f"p={value}")
        longs: Struct = {1: long(1), 2: long(9), 3: long(nulls), 4: long(5)}
        column: Struct = {1: text("a"), 2: text("int"), 3: record({2: record(longs)})}
        found: Struct = {1: record(described), 2: (LIST, ListValue(STRUCT, [column])), 4: text("hive")}
        request: Struct = {1: (LIST, ListValue(STRUCT, [found])), 2: (BOOL, False), 5: text("hive")}
        if write_id:
            request[3] = long(write_id)
            request[4] = text(self.valid_for(table, write_id))
        call = "update_partition_column_statistics_req" if value else "update_table_column_statistics_req"
        self.calls.call(call, {1: record(request)})

    def add_primary_key(self, table: str, name: str) -> None:
        """Declare the column ``a`` the primary key."""
        flags: Struct = {6: (BOOL, False), 7: (BOOL, False), 8: (BOOL, True)}
        key: Struct = {1: text(self.db), 2: text(table), 3: text("a"), 4: integer(1), 5: text(name), **flags}
        request: Struct = {1: (LIST, ListValue(STRUCT, [{**key, 9: text("hive")}]))}
        self.calls.call("add_primary_key", {1: record(request)})

    def add_foreign_key(self, table: str, parent: str, name: str, parent_key: str) -> None:
        """Declare that the column ``a`` points to the one of ``parent``."""
        of: Struct = {1: text(self.db), 2: text(parent), 3: text("a"), 4: text(self.db), 5: text(table), 6: text("a")}
        flags: Struct = {12: (BOOL, False), 13: (BOOL, False), 14: (BOOL, True)}
        key: Struct = {**of, 7: integer(1), 8: integer(0), 9: integer(0), 10: text(name), 11: text(parent_key)}
        request: Struct = {1: (LIST, ListValue(STRUCT, [{**key, **flags, 15: text("hive")}]))}
        self.calls.call("add_foreign_key", {1: record(request)})

    def drop_constraint(self, table: str, name: str) -> None:
        """Drop a constraint."""
        request: Struct = {1: text(self.db), 2: text(table), 3: text(name), 4: text("hive")}
        self.calls.call("drop_constraint", {1: record(request)})

    def create_function(self, name: str) -> None:
        """Create a function in the database."""
        request: Struct = {1: text(name), 2: text(self.db), 3: text("org.example.F"), 4: text("tester"), 5: integer(1)}
        self.calls.call("create_function", {1: record({**request, 6: integer(1), 7: integer(1)})})

    def create_role(self, role: str) -> None:
        """Create a role. It is the whole metastore's."""
        self.calls.call("create_role", {1: record({1: text(role), 2: integer(1), 3: text("tester")})})

    def give_role(self, role: str, to: str, kind: int, *, option: bool = False, revoke: bool = False) -> None:
        """Grant a role to a principal (``kind``: a ``PrincipalType``), or revoke it."""
        request: Struct = {1: integer(2 if revoke else 1), 2: text(role), 3: text(to), 4: integer(kind)}
        request |= {5: text("tester"), 6: integer(1), 7: (BOOL, option)} if not revoke else {}
        self.calls.call("grant_revoke_role", {1: record(request)})

    def give(
        self, privilege: str, to: str, kind: int, on: Struct, *, option: bool = False, revoke: bool = False
    ) -> None:
        """Grant a privilege on a ``HiveObjectRef`` to a principal, or revoke it."""
        info: Struct = {1: text(privilege), 2: integer(9), 3: text("tester"), 4: integer(1), 5: (BOOL, option)}
        given: Struct = {1: record(on), 2: text(to), 3: integer(kind), 4: record(info), 5: text("SQL")}
        bag = record({1: (LIST, ListValue(STRUCT, [given]))})
        self.calls.call("grant_revoke_privileges", {1: record({1: integer(2 if revoke else 1), 2: bag})})

    def drop(self, table: str) -> None:
        """Drop a table with its data."""
        self.calls.call("drop_table", {1: text(self.db), 2: text(table), 3: (BOOL, True)})

    def open(self) -> int:
        """Open a transaction; its id."""
        request: Struct = {1: integer(1), 2: text("tester"), 3: text("host")}
        txn: int = field(self.calls.call("open_txns", {1: record(request)}), 1)[0]
        return txn

    def allocate(self, table: str, txn: int) -> int:
        """Allocate a write id of the table to the transaction."""
        request: Struct = {1: text(self.db), 2: text(table), 3: (LIST, ListValue(I64, [txn]))}
        [pair] = field(self.calls.call("allocate_table_write_ids", {1: record(request)}), 1)
        write_id: int = field(pair, 2)
        return write_id

    def commit(self, txn: int) -> None:
        """Commit."""
        self.calls.call("commit_txn", {1: record({1: long(txn)})})

    def abort(self, txn: int) -> None:
        """Abort."""
        self.calls.call("abort_txn", {1: record({1: long(txn)})})

    def write(self, table: str, **parameters: str) -> int:
        """A committed transaction that alters the table; its write id."""
        txn = self.open()
        write_id = self.allocate(table, txn)
        self.alter(table, write_id, **parameters)
        self.commit(txn)
        return write_id

    def valid_write_ids(self, table: str) -> str:
        """The list that a new reader gets."""
        name = f"{self.db}.{table}"
        return self.metastore.write_ids([name])[name].write_ids().text(name)

    def valid_for(self, table: str, own_id: int) -> str:
        """The list of a reader inside the transaction that holds ``own_id``: that is valid for it."""
        found = ValidWriteIdList.parse(self.valid_write_ids(table))
        opened = [each for each in found.open_ids if each != own_id]
        return str(ValidWriteIdList(f"{self.db}.{table}", max(found.hwm, own_id), opened, found.aborted_ids))


def mapping(values: dict[str, str]) -> tuple[int, MapValue]:
    """A ``map<string, string>`` field."""
    return MAP, MapValue(STRING, STRING, [(text(key)[1], text(value)[1]) for key, value in values.items()])
