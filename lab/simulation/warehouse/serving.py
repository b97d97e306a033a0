"""The metastore's calls, by the names and field numbers of ``hive_metastore.thrift``; and sockets that lead to it."""

from __future__ import annotations

import errno
import json
import socket
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, Final

from lab.simulation.hive.metastore import NONE_OPEN
from lab.simulation.hive.world import FORMS
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.warehouse import thrift
from lab.simulation.warehouse.metastore import CATALOG, KEYS, Warehouse
from lab.simulation.warehouse.thrift import Struct, Typed

PORT: Final = 9_083
LATENCY_S: Final = 0.003
UNKNOWN_METHOD: Final = 1
Arguments = dict[int, Any]


class Missing(Exception):
    """There is no such object. ``field``: of the exception in the call's result."""

    def __init__(self, field: int) -> None:
        self.field = field


class MetastoreServer:
    """Answers calls. ``form``: how it writes messages. What it is asked for is as it is at that moment."""

    def __init__(self, kernel: Kernel, warehouse: Warehouse, form: int) -> None:
        self.kernel = kernel
        self.warehouse = warehouse
        self.down = False
        self.life = 0
        """Counts its crashes: connections of an earlier life are broken."""
        self.slow_s = 0.0
        self.to_break: dict[str, int] = {}
        """Process → it loses the answers to so many of its next calls."""
        self.lost_below = 0
        """Events up to this one were deleted from the log."""
        self._form = FORMS[1 + form % (len(FORMS) - 1)]

    def crash(self) -> None:
        """It goes away, with all connections."""
        self.down = True
        self.life += 1

    def answer(self, request: bytes) -> bytes:
        """The answer to a call."""
        name, sequence, arguments = thrift.read_call(request)
        handler: Callable[[Arguments], Typed] | None = getattr(self, f"call_{name}", None)
        if handler is None:
            unknown: Struct = {1: ("str", f"Invalid method name: '{name}'"), 2: ("i32", UNKNOWN_METHOD)}
            return thrift.message(name, thrift.EXCEPTION, sequence, unknown)
        body: Struct
        try:
            body = {0: handler(arguments)}
        except Missing as missing:
            body = {missing.field: ("rec", {1: ("str", "there is none")})}
        return thrift.message(name, thrift.REPLY, sequence, body)

    def call_get_all_table_constraints(self, arguments: Arguments) -> Typed:
        name = f"{arguments[1][1]}.{arguments[1][2]}"
        found = self.warehouse.constraints_struct(name) if name in self.warehouse.tables else {}
        return "rec", {1: ("rec", found)}

    def call_get_foreign_keys(self, arguments: Arguments) -> Typed:
        parent = f"{arguments[1][1]}.{arguments[1][2]}"
        found: list[Struct] = []
        for name in sorted(self.warehouse.tables):
            if self.warehouse.keys_of(name)[1] == parent:
                found += self.warehouse.constraints_struct(name)[2][1][1]
        return "rec", {1: ("lst", ("rec", found))}

    def call_get_table_statistics_req(self, _: Arguments) -> Typed:
        return "rec", {1: ("lst", ("rec", []))}

    def call_get_config_value(self, arguments: Arguments) -> Typed:
        return "str", arguments[2]

    # --- the log ---

    def call_get_current_notificationEventId(self, _: Arguments) -> Typed:
        return "rec", {1: ("i64", len(self.warehouse.log))}

    def call_get_next_notification(self, arguments: Arguments) -> Typed:
        after, count = max(arguments[1][1], self.lost_below), arguments[1][2]
        rows = self.warehouse.log[after : after + count]
        return "rec", {1: ("lst", ("rec", [self._event(row) for row in rows]))}

    def _event(self, row: dict[str, Any]) -> Struct:
        message = self._form(row["message"])
        found: Struct = {
            1: ("i64", row["eventId"]),
            2: ("i32", row["eventTime"]),
            3: ("str", row["eventType"]),
            6: ("str", message if isinstance(message, str) else json.dumps(message)),
            7: ("str", "json-0.2"),
            8: ("str", row["cat"] or CATALOG),
        }
        return found | {at: ("str", row[name]) for at, name in ((4, "db"), (5, "table")) if row[name]}

    # --- tables ---

    def call_get_databases(self, _: Arguments) -> Typed:
        return "lst", ("str", sorted(self.warehouse.databases))

    def call_get_all_tables(self, arguments: Arguments) -> Typed:
        db = _unmarked(arguments[1])
        tables = (name.split(".") for name in sorted(self.warehouse.tables))
        return "lst", ("str", [table for of, table in tables if of == db])

    def call_get_table_req(self, arguments: Arguments) -> Typed:
        name = f"{arguments[1][1]}.{arguments[1][2]}"
        if name not in self.warehouse.tables:
            raise Missing(2)
        return "rec", {1: ("rec", self.warehouse.table_struct(name))}

    def call_get_table_objects_by_name_req(self, arguments: Arguments) -> Typed:
        db, tables = arguments[1][1], arguments[1][2]
        names = [name for name in (f"{db}.{each}" for each in tables) if name in self.warehouse.tables]
        return "rec", {1: ("lst", ("rec", [self.warehouse.table_struct(name) for name in names]))}

    # --- partitions ---

    def call_get_partition(self, arguments: Arguments) -> Typed:
        name, values = _table(arguments), tuple(arguments[3])
        if values not in self.warehouse.parts.get(name, {}):
            raise Missing(2)
        return "rec", self.warehouse.partition_struct(name, values)

    def call_get_partition_names(self, arguments: Arguments) -> Typed:
        name = _table(arguments)
        if name not in self.warehouse.tables:
            raise Missing(1)
        found = [path_of(values) for values in sorted(self.warehouse.parts[name])]
        return "lst", ("str", found if arguments[3] < 0 else found[: arguments[3]])

    def call_get_partitions_req(self, arguments: Arguments) -> Typed:
        _, db, table, count = (arguments[1][each] for each in range(1, 5))
        name = f"{db}.{table}"
        if name not in self.warehouse.tables:
            raise Missing(1)
        found = sorted(self.warehouse.parts[name])
        found = found if count < 0 else found[:count]
        structs = [self.warehouse.partition_struct(name, values) for values in found]
        return "rec", {1: ("lst", ("rec", structs))}

    def call_fetch_partition_names_req(self, arguments: Arguments) -> Typed:
        name = f"{arguments[1][2]}.{arguments[1][3]}"
        if name not in self.warehouse.tables:
            raise Missing(1)
        return "lst", ("str", [path_of(values) for values in sorted(self.warehouse.parts[name])])

    def call_get_partitions_by_names(self, arguments: Arguments) -> Typed:
        return self._partitions_of(_table(arguments), arguments[3])

    def call_get_partitions_by_names_req(self, arguments: Arguments) -> Typed:
        request = arguments[1]
        return "rec", {1: self._partitions_of(f"{request[1]}.{request[2]}", request[3])}

    def _partitions_of(self, name: str, paths: list[str]) -> Typed:
        if name not in self.warehouse.tables:
            raise Missing(2)
        by_path = {path_of(values): values for values in self.warehouse.parts[name]}
        found = [by_path[each] for each in paths if each in by_path]
        return "lst", ("rec", [self.warehouse.partition_struct(name, values) for values in found])

    # --- what belongs to no table ---

    def call_get_catalog(self, _: Arguments) -> Typed:
        return "rec", {1: ("rec", {1: ("str", CATALOG), 3: ("str", "file:/")})}

    def call_get_database(self, arguments: Arguments) -> Typed:
        db = _unmarked(arguments[1])
        if db not in self.warehouse.databases:
            raise Missing(1)
        return "rec", self.warehouse.database_struct(db)

    def call_get_function(self, arguments: Arguments) -> Typed:
        name = _unmarked(arguments[1]), arguments[2]
        if name not in self.warehouse.functions:
            raise Missing(2)
        return "rec", self.warehouse.function_struct(name)

    def call_get_all_functions(self, _: Arguments) -> Typed:
        functions = [self.warehouse.function_struct(name) for name in sorted(self.warehouse.functions)]
        return "rec", {1: ("lst", ("rec", functions))}

    # --- transactions ---

    def call_get_open_txns(self, _: Arguments) -> Typed:
        txns = self.warehouse.txns
        listed = [txn for txn in sorted(txns) if txns[txn] != "committed"]
        aborted = _bits([txns[txn] == "aborted" for txn in listed])
        return "rec", {1: ("i64", self.warehouse.last_txn), 2: ("lst", ("i64", listed)), 4: ("str", aborted)}

    def call_get_valid_write_ids(self, arguments: Arguments) -> Typed:
        names, seen = arguments[1][1], arguments[1].get(2, "")
        hwm, opened, aborted = self._transactions(seen)
        lists: list[Struct] = []
        for name in names:
            last, invalid, gone, min_open = self.warehouse.lists_for(name, hwm, opened, aborted)
            bits = _bits([each in gone for each in invalid])
            found: Struct = {1: ("str", name), 2: ("i64", last), 3: ("lst", ("i64", invalid)), 5: ("str", bits)}
            lists.append(found | ({4: ("i64", min_open)} if min_open != NONE_OPEN else {}))
        return "rec", {1: ("lst", ("rec", lists))}

    def _transactions(self, seen: str) -> tuple[int, set[int], set[int]]:
        """High-water mark, open and aborted ones, of the reader's list, or the server's own."""
        if seen:
            hwm, _, opened, aborted = seen.split(":")
            return int(hwm), *({int(each) for each in ids.split(",") if each} for ids in (opened, aborted))  # type: ignore[return-value]
        txns = self.warehouse.txns
        opened_now, aborted_now = ({txn for txn in txns if txns[txn] == state} for state in ("open", "aborted"))
        return self.warehouse.last_txn, opened_now, aborted_now


def _unmarked(db: str) -> str:
    """``@catalog#db``."""
    catalog, _, name = db.removeprefix("@").partition("#")
    assert catalog == CATALOG, db
    return name


def _table(arguments: Arguments) -> str:
    return f"{_unmarked(arguments[1])}.{arguments[2]}"


def path_of(values: tuple[str, ...]) -> str:
    """The name of a partition."""
    return "/".join(f"{key}={value}" for (key, _), value in zip(KEYS, values, strict=True))


def _bits(flags: list[bool]) -> bytes:
    """As Java's BitSet."""
    raw = bytearray((len(flags) + 7) // 8)
    for at, flag in enumerate(flags):
        raw[at // 8] |= flag << at % 8
    return bytes(raw).rstrip(b"\0")


class MetastoreSocket:
    """The client's end of a connection, as far as the product uses one. A call is answered while it waits for that."""

    def __init__(self, server: MetastoreServer, rng: Random) -> None:
        self._server = server
        self._kernel = server.kernel
        self._rng = rng
        self._life = server.life
        self._timeout_s = 0.0
        self._asked = b""
        self._out = b""

    def settimeout(self, seconds: float) -> None:
        """How long `recv` waits."""
        self._timeout_s = seconds

    def setsockopt(self, *_: object) -> None:
        """Nothing to set."""

    def close(self) -> None:
        """Nobody reads any more."""
        self._life = -1

    def sendall(self, data: bytes) -> None:
        """Sends one call."""
        self._require()
        self._asked, self._out = data, b""

    def recv(self, _: int, flags: int = 0) -> bytes:
        """A piece of the answer."""
        if flags:  # between calls: has the other end said anything?
            if self._life != self._server.life:
                return b""
            raise BlockingIOError(errno.EAGAIN, "nothing there")
        if not self._out:
            self._wait()
            self._require()
            process, left = self._kernel.current, self._server.to_break
            if left.get(process, 0):
                left[process] -= 1
                self._life = -1
                self._require()
            self._out, self._asked = self._server.answer(self._asked), b""
        size = len(self._out) if self._rng.random() < 0.8 else 1 + self._rng.randrange(len(self._out))
        piece, self._out = self._out[:size], self._out[size:]
        return piece

    def _wait(self) -> None:
        takes_s = self._server.slow_s or LATENCY_S * self._rng.random()
        self._kernel.wait(lambda: self._life != self._server.life, min(takes_s, self._timeout_s))
        if takes_s > self._timeout_s:
            raise TimeoutError("timed out")

    def _require(self) -> None:
        if self._life != self._server.life:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def twins(server: MetastoreServer) -> dict[Any, Any]:
    """Real object → what takes its place in the product's modules."""

    def connect(address: tuple[str, int], timeout: float) -> MetastoreSocket:
        server.kernel.wait(lambda: False, min(LATENCY_S * server.kernel.rng.random(), timeout))
        if server.down or address[1] != PORT:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        return MetastoreSocket(server, server.kernel.rng)

    return {socket: SimpleNamespace(**{**vars(socket), "create_connection": connect})}
