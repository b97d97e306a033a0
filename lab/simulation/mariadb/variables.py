"""The variables of a session, and what else its expressions may ask."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Final, cast

from lab.simulation.mariadb.log.events import Gtid
from lab.simulation.mariadb.sql.syntax import UnknownStatement, Variable
from lab.simulation.mariadb.storage.columns import Stored

if TYPE_CHECKING:
    from lab.simulation.mariadb.server import SimulatedServer

SESSION_DEFAULTS: Final[dict[str, Stored]] = {
    "autocommit": 1,
    "time_zone": "SYSTEM",
    "sql_mode": "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION",
    "sort_buffer_size": 2 << 20,
    "sql_select_limit": (1 << 64) - 1,
    "sql_big_selects": 1,
    "max_sort_length": 1_024,
    "max_statement_time": 0,
    "lc_time_names": "en_US",
    "div_precision_increment": 4,
    "default_week_format": 0,
    "system_versioning_asof": "DEFAULT",
    "sql_quote_show_create": 1,
    "query_cache_type": 0,
    "completion_type": 0,
    "max_execution_time": 0,
    "information_schema_stats_expiry": 86_400,
    "show_gipk_in_create_table_and_information_schema": 1,
    "use_secondary_engine": "ON",
    "lock_wait_timeout": 86_400,
    "session_track_gtids": "OFF",
    "innodb_lock_wait_timeout": 50,
    "tx_isolation": "REPEATABLE-READ",
    "names": "utf8mb4",
    "collation_connection": "utf8mb4_general_ci",
}
"""The variables that a session has of its own, besides those that begin as the server's."""
COMPUTED: Final = ("server_id", "last_gtid", "gtid_binlog_pos", "gtid_binlog_state", "gtid_slave_pos")
"""The variables that `SessionVariables` works out."""
_FROM_SERVER: Final = frozenset({"binlog_format", "gtid_domain_id"})


class SessionVariables:
    """Implements `Surroundings`. ``own``: the variables that the session has set."""

    def __init__(self, server: SimulatedServer) -> None:
        self._server = server
        self.own: dict[str, Stored] = {}
        self._user_values: dict[str, Stored] = {}
        self.last_gtid = ""
        self.commits: list[int] = []
        """The numbers of all that the session has committed."""
        self._told = 0

    def committed(self, gtid: Gtid) -> None:
        """The session has committed a transaction."""
        self.last_gtid = "-".join(map(str, gtid))
        self.commits.append(gtid[2])

    def news(self) -> str:
        """The GTIDs of what the statement that ends has committed, if a MySQL is to tell them; once."""
        new, self._told = self.commits[self._told :], len(self.commits)
        is_asked = self.own.get("session_track_gtids") == "OWN_GTID"
        return ":".join([self._server.uuid, *map(str, new)]) if new and is_asked else ""

    def variable(self, scope: str, name: str) -> Stored:
        """The value of a variable. Raises `UnknownStatement`."""
        if scope == "@":
            return self._user_values.get(name)
        computed = self._computed(name)
        if computed is not None:
            return computed
        if scope != "global" and name in self.own:
            return self.own[name]
        known = self._server.variables
        if name in known:
            value = known[name]
            return int(value == "ON") if value in ("ON", "OFF") else value
        if name in SESSION_DEFAULTS:
            return SESSION_DEFAULTS[name]
        raise UnknownStatement(f"variable {name}")

    def _computed(self, name: str) -> Stored:
        server = self._server
        match name:
            case "server_id":
                return server.id
            case "last_gtid":
                return self.last_gtid
            case "gtid_binlog_pos":
                return server.log.position
            case "gtid_binlog_state":
                return server.log.state_text
            case "gtid_slave_pos":
                return ",".join("-".join(map(str, gtid)) for _, gtid in sorted(server.slave_position.items()))
            case "server_uuid":
                return server.uuid
            case "gtid_executed":
                return server.gtid_executed
            case "gtid_owned":
                return server.gtid_owned
            case "gtid_purged":
                return ""
        return None

    def shown(self) -> list[tuple[Stored, ...]]:
        """``SHOW VARIABLES``: names and values, in order."""
        names = {*self._server.variables, *SESSION_DEFAULTS, *COMPUTED}
        if self._server.is_mysql:
            names.remove("last_gtid")
        return [(name, str(self.variable("session", name))) for name in sorted(names)]

    def number(self, name: str) -> float:
        """The value of a variable that is a number."""
        return float(cast("float", self.variable("", name)))

    @property
    def zone(self) -> timedelta:
        """The session's time zone: how far it is ahead of UTC."""
        text = str(self.variable("session", "time_zone"))
        if text == "SYSTEM":
            return timedelta(seconds=self._server.behaviour.zone_s)
        hours, minutes = text.lstrip("+-").split(":")
        return timedelta(hours=int(hours), minutes=int(minutes)) * (-1 if text.startswith("-") else 1)

    def local_time(self) -> datetime:
        """The server's time in the session's zone."""
        return datetime.fromtimestamp(self._server.time_s, UTC).replace(tzinfo=None) + self.zone

    def unix_time(self) -> Decimal:
        """Seconds since 1970, with fractions."""
        return Decimal(f"{self._server.time_s:.6f}")

    def position_at(self, file: str, offset: int) -> str | None:
        """``BINLOG_GTID_POS``."""
        return self._server.log.position_at(file, offset)

    def assign(self, name: Variable, value: Stored) -> None:
        """``SET``. Raises `UnknownStatement`."""
        if name.scope == "@":
            self._user_values[name.name] = value
        elif name.scope == "global":
            if name.name not in self._server.variables:
                raise UnknownStatement(f"SET GLOBAL {name.name}")
            is_switch = self._server.variables[name.name] in ("ON", "OFF")
            shown_value = ("ON" if value in (1, "ON") else "OFF") if is_switch else value
            self._server.variables[name.name] = cast("str | int", shown_value)
        elif name.name in SESSION_DEFAULTS or name.name in _FROM_SERVER:
            self.own[name.name] = value
        else:
            raise UnknownStatement(f"SET {name.name}")
