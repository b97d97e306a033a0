"""The driver's twin: PyMySQL's own connection over a socket whose other end is a simulated server.

PyMySQL parses the answers and makes the errors, so there is nothing of it to imitate. Statements run while their sender
waits for the answer, and in its thread. If it dies or gives up meanwhile, they go no further.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import GeneratorType
from typing import Any, Final, TypeAlias, cast

import pymysql
from pymysql.constants import CR, ER

from lab.simulation.kernel.waits import Waits
from lab.simulation.mariadb import protocol
from lab.simulation.mariadb.log.binlog import Dump
from lab.simulation.mariadb.server import SimulatedServer
from lab.simulation.mariadb.sessions import Session
from lab.simulation.mariadb.sql.syntax import UnknownStatement
from lab.simulation.mariadb.storage.errors import ServerError
from lab.simulation.mariadb.transacting import NEVER
from lab.simulation.mariadb.transactions import Blocked, Steps

Work: TypeAlias = "GeneratorType[Blocked, None, None]"
Address: TypeAlias = tuple[str, int]
Servers: TypeAlias = Mapping[Address, SimulatedServer]
"""Which server answers at an address. The mapping may change, as a name's address does at a failover."""

REPLACED: Final = "A slave with the same server_uuid/server_id as this slave has connected to the master"


class ServerConnection:
    """The server's end of a connection. ``out``: bytes that the client can read."""

    def __init__(self, server: SimulatedServer, process: str) -> None:
        self.server = server
        self.process = process
        self.session = Session(server, process, self._stop_work)
        self.out = bytearray()
        self._in = bytearray()
        self._work: Work | None = None
        self.blocked: Blocked | None = None
        self._is_logged_in = self._tracks = False
        more = protocol.SESSION_TRACK if server.is_mysql else 0
        version = str(server.variables["version"])
        self.out += protocol.framed([protocol.greeting(version, 1, self.session.status, more)], 0)

    @property
    def is_over(self) -> bool:
        """Whether the server has ended the connection."""
        return self.session.is_over

    def end(self) -> None:
        """End the connection from either side."""
        if not self.is_over:
            self.session.end()

    def _stop_work(self) -> None:
        """Give up the statement under way, unless it is the one that ends the session."""
        work, self._work = self._work, None
        if work is not None and not work.gi_running:
            work.close()

    def can_proceed(self) -> bool:
        """Whether `proceed` would do anything, or the connection is over."""
        if not self.server.reaches(self.process):
            return False
        blocked = self.blocked
        return self.is_over or blocked is None or blocked.ready() or self.server.waits.now >= blocked.until

    def next_at(self) -> float:
        """When the statement under way goes on at the latest."""
        reaches = self.server.reaches(self.process)
        return self.blocked.until if self.blocked is not None and reaches and not self.is_over else NEVER

    def receive(self, data: bytes) -> None:
        """Bytes of the client. A complete packet is executed as far as it goes without waiting."""
        self._in += data
        self.proceed()

    def proceed(self) -> None:
        """Go on with what the client asked for, as far as possible now."""
        while not self.is_over and self.server.reaches(self.process):
            if self._work is None:
                size = int.from_bytes(self._in[:3], "little")
                if len(self._in) < 4 + size or not self._in:
                    return
                number, payload = self._in[3], bytes(self._in[4 : 4 + size])
                del self._in[: 4 + size]
                made = self._command(payload) if self._is_logged_in else self._login(number, payload)
                self._work, self.blocked = cast("Work", made), None
            elif self.blocked is not None and not self.blocked.ready() and self.server.waits.now < self.blocked.until:
                return
            self._step(self._work)

    def _step(self, work: Work) -> None:
        try:
            self.blocked = next(work)
        except StopIteration:
            self._work = self.blocked = None
        except BaseException:
            self.end()
            raise

    def _login(self, number: int, payload: bytes) -> Steps[None]:
        login = protocol.parse_login(payload)
        server = self.server
        if len(server.sessions) > server.behaviour.connections_max:
            self._refuse(ServerError(ER.CON_COUNT_ERROR, "Too many connections", "08004"), number)
        elif login.user != server.user or login.scramble != protocol.scrambled(server.password):
            using = "YES" if login.scramble else "NO"
            text = f"Access denied for user '{login.user}'@'{self.process}' (using password: {using})"
            self._refuse(ServerError(ER.ACCESS_DENIED_ERROR, text, "28000"), number)
        else:
            self.session.database = login.database
            self._is_logged_in = True
            self._tracks = server.is_mysql and bool(login.flags & protocol.SESSION_TRACK)
            self.out += protocol.framed([protocol.ok(0, self.session.status)], number + 1)
        return
        yield

    def _refuse(self, error: ServerError, number: int) -> None:
        self.out += protocol.framed([protocol.failed(error)], number + 1)
        self.session.end()

    def _command(self, payload: bytes) -> Steps[None]:
        kind, body = payload[0], payload[1:]
        if kind == protocol.QUIT:
            self.session.end()
        elif kind == protocol.INIT_DB:
            self.session.database = body.decode()
            self._answer([protocol.ok(0, self.session.status)])
        elif kind == protocol.PING:
            self._answer([protocol.ok(0, self.session.status)])
        elif kind == protocol.BINLOG_DUMP:
            yield from self._dump(int.from_bytes(body[6:10], "little"))
        elif kind == protocol.QUERY:
            yield from self._query(body.decode())
        else:
            raise UnknownStatement(f"command {kind}")

    def _query(self, sql: str) -> Steps[None]:
        broken = self._take_break(sql)
        yield from self._travel()
        if broken == "before":
            self.session.end()
            return
        try:
            answer = yield from self.session.execute(sql)
            news = self.session.variables.news()
            packets = protocol.result(answer, self.session.status, news if self._tracks else "")
        except ServerError as error:
            packets = [protocol.failed(error)]
        yield from self._travel()
        if broken:
            sent = protocol.framed(packets, 1)
            self.out += sent[: len(sent) // 2] if broken == "middle" else b""
            self.session.end()
        else:
            self._answer(packets)

    def _take_break(self, sql: str) -> str:
        word = sql.split(None, 1)[0].upper()
        for each in self.server.breaks:
            if each.process in ("", self.process) and each.word in ("", word):
                self.server.breaks.remove(each)
                return each.place
        return ""

    def _answer(self, packets: list[bytes]) -> None:
        self.out += protocol.framed(packets, 1)

    def _travel(self) -> Steps[None]:
        seconds = self.server.behaviour.latency_s()
        if seconds:
            yield Blocked(lambda: False, self.server.waits.now + seconds)

    def _dump(self, replica: int) -> Steps[None]:
        """Send the binlog for ever. A replica of the same id is told that it is replaced."""
        session, server = self.session, self.server
        server.dumps.get(replica, lambda: None)()
        server.dumps[replica] = self._replaced
        try:
            dump = Dump(server.log, str(session.variables.variable("@", "slave_connect_state") or ""))
        except ServerError as error:
            self._answer([protocol.failed(error)])
            self.end()
            return
        period_ns = session.variables.variable("@", "master_heartbeat_period") or 30_000_000_000
        period_s = float(cast("int", period_ns)) / 1e9

        def has_event() -> bool:
            return server.is_behind or dump.ready()

        number = 1
        while True:
            if not has_event():
                yield Blocked(has_event, server.waits.now + period_s)
            server.catch_up()
            event = dump.take() if dump.ready() else dump.heartbeat()
            self.out += protocol.framed([b"\0" + event], number)
            number += 1

    def _replaced(self) -> None:
        if not self.is_over:
            self._answer([protocol.failed(ServerError(ER.MASTER_FATAL_ERROR_READING_BINLOG, REPLACED))])
            self.end()


class SimulatedSocket:
    """The client's end of a connection, as far as PyMySQL and the binlog reader use a socket."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._timeout_s: float | None = None
        self._is_open = True

    def settimeout(self, seconds: float | None) -> None:
        """How long a read waits for its bytes."""
        self._timeout_s = seconds

    def sendall(self, data: bytes) -> None:
        """Send bytes. Raises OSError if the server has ended the connection."""
        if not self._is_open or self._connection.is_over:
            raise BrokenPipeError(32, "Broken pipe")
        self._connection.server.waits.wait(lambda: True)  # between two statements others may run
        self._connection.receive(data)

    def makefile(self, _mode: str, buffering: int = -1) -> SimulatedSocket:  # noqa: ARG002
        """The socket itself: it can be read like a file."""
        return self

    def peek(self, size: int) -> bytes:
        """Up to ``size`` of the bytes that are there already. They stay there."""
        self._connection.proceed()
        return bytes(self._connection.out[:size]) if self._is_open and self._has(1) else b""

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes, or fewer if the connection has ended. Raises TimeoutError."""
        self._await(size)
        return self._take(size)

    def read1(self, size: int) -> bytes:
        """What is there of ``size`` bytes, one at least unless the connection has ended. Raises TimeoutError."""
        self._await(1)
        return self._take(size)

    def _await(self, size: int) -> None:
        connection = self._connection
        waits = connection.server.waits
        gives_up_at = NEVER if self._timeout_s is None else waits.now + self._timeout_s

        def can_go_on() -> bool:
            return not self._is_open or self._has(size) or connection.can_proceed()

        while True:
            connection.proceed()
            if not self._is_open or self._has(size):
                break
            if waits.now >= gives_up_at:
                raise TimeoutError("timed out")
            until = min(gives_up_at, connection.next_at())
            waits.wait(can_go_on, None if until == NEVER else max(until - waits.now, 0.0))

    def _take(self, size: int) -> bytes:
        if not self._is_open:
            return b""
        out = self._connection.out
        found = bytes(out[:size])
        del out[:size]
        return found

    def _has(self, size: int) -> bool:
        """Whether a read of ``size`` bytes is over now."""
        connection = self._connection
        if connection.is_over and not connection.server.reaches(connection.process):
            return False
        return len(connection.out) >= size or connection.is_over

    def shutdown(self, _how: int) -> None:
        """End the connection. Who waits in `read` gets nothing."""
        self.close()

    def close(self) -> None:
        """End the connection."""
        if self._is_open:
            self._is_open = False
            self._connection.end()


class SimulatedConnection(pymysql.connections.Connection):  # type: ignore[misc]
    """PyMySQL's connection to a simulated server."""

    def __init__(self, servers: Servers, waits: Waits, **arguments: Any) -> None:
        self._servers = servers
        self._waits = waits
        arguments = {name: value for name, value in arguments.items() if not name.startswith("ssl_")}
        super().__init__(**arguments, ssl_disabled=True)

    def connect(self, sock: Any = None) -> None:
        """Connect and log in. Raises PyMySQL's errors."""
        try:
            sock = self._reached()
        except OSError as error:
            raise pymysql.err.OperationalError(
                CR.CR_CONN_HOST_ERROR, f"Can't connect to MySQL server on {self.host!r} ({error})"
            ) from error
        super().connect(sock)

    def _reached(self) -> SimulatedSocket:
        server = self._servers.get((self.host, self.port))
        process = self._waits.current
        if server is not None and not server.reaches(process):
            self._waits.wait(lambda: server.reaches(process), self.connect_timeout)
            if not server.reaches(process):
                raise TimeoutError("timed out")
        if server is None or server.down:
            raise ConnectionRefusedError(111, "Connection refused")
        return SimulatedSocket(ServerConnection(server, process))


class SimulatedDriver:
    """What takes the place of the module `pymysql`: everything is its own, but `connect`."""

    def __init__(self, servers: Servers, waits: Waits) -> None:
        self.connect = partial(SimulatedConnection, servers, waits)

    def __getattr__(self, name: str) -> Any:
        return getattr(pymysql, name)


def twins(servers: Servers, waits: Waits) -> dict[Any, Any]:
    """Real object → what takes its place in the product's modules."""
    return {pymysql: SimulatedDriver(servers, waits)}
