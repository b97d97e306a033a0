"""What `check_server` refuses, by the server's answers alone: no server is needed."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Self, cast

import pymysql
import pytest

from stream.sources.mariadb import position, requirements
from stream.sources.mariadb.connection import NotResumable, ServerSettingsError
from stream.sources.mariadb.replicas import left_out
from stream.sources.mariadb.requirements import check_server

GOOD = {
    "version": "10.11.6-MariaDB-log",
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "log_slave_updates": "OFF",
    "gtid_strict_mode": "ON",
    "sync_binlog": "1",
    "innodb_flush_log_at_trx_commit": "1",
    "wsrep_on": "OFF",
    "wsrep_gtid_mode": "OFF",
    "read_only": "OFF",
    "gtid_domain_id": "0",
}


class Server:
    """A session of a server with these variables, which replicates from ``primaries``. Its own server_id is 1."""

    def __init__(self, *, state: str = "0-1-5", primaries: tuple[int, ...] = (), **variables: str) -> None:
        self.variables = GOOD | variables
        self.state = state
        self.primaries = primaries
        self.runs = b"Yes"

    def get_server_info(self) -> str:
        """As at login."""
        return "11.4.5-MariaDB"

    def cursor(self, _: object = None) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, _: str) -> None: ...

    def fetchall(self) -> list[dict[str, Any]]:
        return [{"Slave_SQL_Running": self.runs, "Master_Server_Id": b"%d" % each} for each in self.primaries]


@pytest.fixture(autouse=True)
def answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries are answered by the `Server` that is given for a connection."""

    def fetch_all(server: Server, sql: str, _: object = ()) -> list[tuple[str, ...]]:
        if sql.startswith("SHOW GLOBAL VARIABLES"):
            return list(server.variables.items())
        if sql == "SHOW MASTER STATUS":
            return [("bin.000001", "4", "", "")]
        return [("0-2-5" if server.primaries else "", "1", server.state)]

    monkeypatch.setattr(requirements, "fetch_all", fetch_all)


def refusal(**server: Any) -> str:
    """Why a server is refused; "" if it is accepted."""
    connection: Any = Server(**server)
    try:
        check_server(connection)
    except ServerSettingsError as error:
        return f"{error} {error.hint}"
    return ""


def test_a_server_whose_gtids_order_is_accepted() -> None:
    """A primary, a replica that nobody writes to, and one that has writers in domains of their own."""
    assert refusal() == ""
    logged = {"log_slave_updates": "ON", "primaries": (2,)}
    assert refusal(state="0-1-3,0-2-5", read_only="ON", **logged) == ""
    assert refusal(state="0-1-3,7-2-5", **logged) == ""


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("log_bin", "OFF", "log_bin"),
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "NO_LOG", "FULL"),
        ("gtid_strict_mode", "OFF", "SET GLOBAL gtid_strict_mode = ON"),
        ("sync_binlog", "0", "SET GLOBAL sync_binlog = 1"),
        ("sync_binlog", "1000", "SET GLOBAL sync_binlog = 1"),
        ("innodb_flush_log_at_trx_commit", "0", "SET GLOBAL innodb_flush_log_at_trx_commit = 1"),
        ("innodb_flush_log_at_trx_commit", "2", "SET GLOBAL innodb_flush_log_at_trx_commit = 1"),
    ],
)
def test_each_setting_that_a_proof_needs_is_demanded(name: str, value: str, fix: str) -> None:
    """Without it changes are hidden, or a GTID may come again or stand for a later transaction, or for lost rows."""
    assert fix in refusal(**{name: value})


def test_an_engine_that_syncs_more_often_than_it_must_is_accepted() -> None:
    """MariaDB's 3 is 1 and a sync more."""
    assert refusal(innodb_flush_log_at_trx_commit="3") == ""


def test_a_galera_node_needs_gtids_of_the_cluster() -> None:
    """Else the same transaction has another GTID at each node."""
    assert "wsrep_gtid_mode" in refusal(wsrep_on="ON")
    assert refusal(wsrep_on="ON", wsrep_gtid_mode="ON") == ""


def test_who_replicates_is_a_replica() -> None:
    """Also while its replication is stopped: it lags all the more."""
    replica: Any = Server(primaries=(2,), read_only="ON", log_slave_updates="ON")
    assert check_server(replica)
    replica.runs = b"No"
    assert check_server(replica)
    primary: Any = Server()
    assert not check_server(primary)


def test_two_writers_in_one_domain_are_refused() -> None:
    """Each has its own sequence: its own clients beside a primary, or two primaries, in one domain."""
    logged = {"log_slave_updates": "ON"}
    assert "two writers" in refusal(state="0-1-3,0-2-5", primaries=(2,), **logged)
    assert "two writers" in refusal(state="0-2-5,0-3-5", read_only="ON", primaries=(2, 3), **logged)
    assert refusal(state="0-2-5,1-3-5", read_only="ON", primaries=(2, 3), **logged) == ""


def test_a_replica_must_log_what_it_replicates() -> None:
    """Else its rows change without a trace in its binlog."""
    assert "log_slave_updates" in refusal(primaries=(2,), read_only="ON")


@pytest.mark.parametrize(
    ("replicated", "read_only", "is_primary"),
    [
        ("", 0, True),
        ("", 1, False),
        ("0-9-3", 0, True),
        ("0-9-3", 1, False),
        ("0-1-4", 0, False),
        ("0-1-9", 0, False),
        ("7-7-1", 0, False),
        ("0-9-3,7-7-1", 0, False),
    ],
)
def test_a_server_that_repeats_another_ones_writes_is_no_primary(
    monkeypatch: pytest.MonkeyPatch, replicated: str, read_only: int, is_primary: bool
) -> None:
    """``read_only`` is off by default on a replica, too. A promoted one counts from its first own write."""
    monkeypatch.setattr(position, "fetch_all", lambda *_: [("0-1-4", "0-1-4", 5, 1, replicated, read_only, 0)])
    bounds = position.bounds_since(cast("Any", None), position.BinlogPlace("f", 4))
    assert bounds is not None
    assert bounds.is_primary is is_primary


@pytest.mark.parametrize(("wsrep_on", "is_primary"), [(1, False), (0, True), (None, True)])
def test_a_node_of_a_cluster_is_no_primary(
    monkeypatch: pytest.MonkeyPatch, wsrep_on: int | None, is_primary: bool
) -> None:
    """What another node has committed it shows a while later. A server may be built without that: None."""
    asked: list[str] = []

    def fetch_all(_: object, sql: str, __: object) -> list[tuple[object, ...]]:
        asked.append(sql.rpartition(" ")[2])
        if "wsrep_on" in sql and wsrep_on is None:
            raise pymysql.err.OperationalError(1193, "Unknown system variable 'wsrep_on'")
        return [("0-1-4", "0-1-4", 5, 1, "", 0, wsrep_on or 0)]

    monkeypatch.setattr(position, "fetch_all", fetch_all)
    session = cast("Any", Server())
    for _ in range(2):
        bounds = position.bounds_since(session, position.BinlogPlace("f", 4))
        assert bounds is not None
        assert bounds.is_primary is is_primary
    variable = "@@GLOBAL.wsrep_on"
    assert asked == ([variable, "0", "0"] if wsrep_on is None else [variable] * 2)  # nothing fails with each read
    in_cluster: Any = Server(wsrep_on="ON" if wsrep_on else "OFF", wsrep_gtid_mode="ON")
    assert check_server(in_cluster) is not is_primary


class Scanned:
    """A session of a server whose log ends at ``ends`` in turn, and that has committed up to ``committed``."""

    def __init__(self, ends: list[int], committed: int, file: str = "b.2") -> None:
        self.ends, self.committed, self.file = ends, committed, file
        self.asked: list[str] = []

    def get_server_info(self) -> str:
        """As at login."""
        return "10.11.6-MariaDB"

    def answer(self, sql: str) -> list[tuple[object, ...]]:
        """What the server says."""
        self.asked.append(sql.split("(")[0])
        if sql.startswith("SHOW STATUS"):
            return [("Binlog_snapshot_file", self.file), ("Binlog_snapshot_position", self.committed)]
        if sql.startswith("SHOW MASTER"):
            return [("b.2", self.ends.pop(0) if len(self.ends) > 1 else self.ends[0], "", "")]
        if sql == "SELECT @@gtid_binlog_pos":
            return [("0-1-8",)]
        return [("0-1-7" if "BINLOG_GTID_POS" in sql else "0-1-8", "0-1-9", 5, 1, "", 0, 0)]


@pytest.mark.parametrize(
    ("ends", "committed", "file", "lo"),
    [
        ([5_000_000], 5_000_000, "b.2", 8),
        ([5_000_000, 5_000_900], 5_000_900, "b.2", 8),
        ([5_000_000], 4_999_000, "b.2", 7),  # what ends the log is not committed yet
        ([5_000_000, 5_000_900], 9_000_000, "b.2", 7),  # it is an offset in another file
        ([5_000_000], 5_000_000, "b.1", 7),
        ([900_000], 900_000, "b.2", 7),  # it is another log, or the file was not long enough before
    ],
)
def test_a_log_is_not_read_anew_to_find_the_position_of_its_end(
    monkeypatch: pytest.MonkeyPatch, ends: list[int], committed: int, file: str, lo: int
) -> None:
    """Without an index of GTIDs each read of a row costs as much as reading the log's file up to there, seconds."""
    monkeypatch.setattr(position, "fetch_all", lambda server, sql, _=(): server.answer(sql))
    server: Any = Scanned(ends, committed, file)
    position._SCANNED[server] = position.BinlogPlace("b.2", 1_000_000)
    bounds = position.bounds_since(server, position.committed_place(server))
    assert bounds is not None
    assert bounds.lo == f"MariaDB/0-1-{lo}"
    assert ("SELECT BINLOG_GTID_POS" in server.asked) is (lo == 7)


def test_a_place_is_remembered_if_its_position_was_found_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one near a file's beginning, nor where an index finds it at once: there nothing is asked in addition."""
    monkeypatch.setattr(position, "fetch_all", lambda server, sql, _=(): server.answer(sql))
    server: Any = Scanned([5_000_000], 5_000_000)
    for slow_s, offset, count in ((9.0, 5_000_000, 2), (0.0, 900, 2), (0.0, 5_000_000, 2), (0.0, 5_000_000, 4)):
        monkeypatch.setattr(position, "SLOW_S", slow_s)
        server.committed, server.asked = offset, []
        position.bounds_since(server, position.committed_place(server))
        assert len(server.asked) == count


def test_a_user_who_may_not_see_where_the_log_ends_reads_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front's user may have SELECT alone."""

    def fetch_all(server: Scanned, sql: str, _: object = ()) -> list[tuple[object, ...]]:
        if sql.startswith("SHOW MASTER"):
            raise pymysql.err.OperationalError(1227, "Access denied; you need BINLOG MONITOR")
        return server.answer(sql)

    monkeypatch.setattr(position, "fetch_all", fetch_all)
    server: Any = Scanned([5_000_000], 5_000_000)
    position._SCANNED[server] = position.BinlogPlace("b.2", 1_000_000)
    bounds = position.bounds_since(server, position.committed_place(server))
    assert bounds is not None
    assert bounds.lo == "MariaDB/0-1-7"


@pytest.mark.parametrize(("sequence", "is_purged"), [(3, True), (4, False), (9, False)])
def test_a_log_can_be_read_from_where_its_oldest_file_begins(
    monkeypatch: pytest.MonkeyPatch, sequence: int, is_purged: bool
) -> None:
    """All that is purged is published by then: an epoch that begins there would void everything for nothing."""

    def fetch_all(_: object, sql: str, *__: object) -> list[tuple[str, ...]]:
        if "binlog_state" in sql:
            return [("0-1-9", "0-1-9")]
        return [("bin.000007",)] if sql.startswith("SHOW") else [("0-1-4",)]

    monkeypatch.setattr(position, "is_mysql", lambda _: False)
    monkeypatch.setattr(position, "fetch_all", fetch_all)
    with pytest.raises(NotResumable) if is_purged else nullcontext():
        position.check_resumable(cast("Any", None), f"MariaDB/0-1-{sequence}")


@pytest.mark.parametrize(
    ("read_only", "own"), [("ON", {"0", "5"}), ("1", {"0", "5"}), ("OFF", {"0", "9"}), ("0", {"0", "9"})]
)
def test_the_histories_of_a_shard_are_those_of_whoever_has_written_there(
    monkeypatch: pytest.MonkeyPatch, read_only: str, own: set[str]
) -> None:
    """A server that only reads tells its primaries' too, and what it wrote itself before. One that writes, its own."""
    said = (read_only, "9", "1", "0-1-3,5-2-9,6-3-1", "5-2-9")
    monkeypatch.setattr(requirements, "fetch_all", lambda *_: [said])
    server: Any = Server(primaries=(2,))
    assert requirements.own_histories(server) == own


@pytest.mark.parametrize(("filters", "is_refused"), [(("", ""), False), (("shop.x", ""), True), (("", "shop.x"), True)])
def test_a_replica_that_leaves_something_out_of_any_of_its_replications_is_not_read(
    monkeypatch: pytest.MonkeyPatch, filters: tuple[str, str], is_refused: bool
) -> None:
    """It may have several, each with filters of its own. What is left out is in no log that is read."""
    server: Any = Server()
    replications = [{"Connection_name": "", "Replicate_Do_Table": each.encode()} for each in filters]
    monkeypatch.setattr(server, "fetchall", lambda: replications)
    monkeypatch.setattr(left_out, "fetch_all", lambda *_: [("slave_exec_mode", "STRICT")])
    with pytest.raises(ServerSettingsError, match=r"replicate_do_table = shop\.x") if is_refused else nullcontext():
        left_out.check_leaves_nothing_out(server)


@pytest.mark.parametrize(("there", "is_refused"), [("0-1-8,7-1-3", True), ("0-1-8", False), ("0-1-10,7-1-3", False)])
def test_a_domain_that_began_in_a_later_log_before_the_position_is_unknown(
    monkeypatch: pytest.MonkeyPatch, there: str, is_refused: bool
) -> None:
    """Its events stand before the position, and the server would send them all again. Behind it they are new."""

    def fetch_all(_: object, sql: str, arguments: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        if "binlog_state" in sql:
            return [("0-1-12,7-1-3", "0-1-12,7-1-3")]
        if sql.startswith("SHOW"):
            return [("bin.000007",), ("bin.000008",)]
        return [("0-1-4",)] if arguments == ("bin.000007",) else [(there,)]

    monkeypatch.setattr(position, "is_mysql", lambda _: False)
    monkeypatch.setattr(position, "fetch_all", fetch_all)
    with pytest.raises(NotResumable, match="domain 7") if is_refused else nullcontext():
        position.check_resumable(cast("Any", None), "MariaDB/0-1-9")
