"""How far a connector for MySQL or MariaDB has told, by the offsets that Kafka Connect keeps for it.

They are committed in one Kafka transaction with the messages (``exactly.once.support = required``). So whoever asks for
them first, and then where the topics end, finds all that they name before those ends.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import quote

import structlog

from stream.sources.debezium.connector import KafkaConnect, asked
from stream.sources.debezium.errors import ConnectUnreachable, DebeziumError
from stream.sources.mariadb.gtid import Gtid, GtidPosition, MysqlGtidSet
from tokens.errors import TokenError
from tokens.mariadb import parse_gtid

log = structlog.get_logger(__name__)


class _Offsets(NamedTuple):
    """``gtids``: as text. ``is_between``: they end between two transactions, as far as the connector says."""

    gtids: str
    is_between: bool


class ConnectorOffsets:
    """Asks for the offsets of one connector. ``prefix``: its ``topic.prefix``."""

    def __init__(self, connect: KafkaConnect, name: str, prefix: str, server: str) -> None:
        self._connect, self._path = connect, f"connectors/{quote(name, safe='')}/offsets"
        self._prefix, self._server = prefix, server
        self._first: str | None = None
        self._has_warned = False

    def told(self) -> GtidPosition | None:
        """Up to where every transaction is in the topics, or None: nobody knows now. Raises `DebeziumError`."""
        try:
            found = offsets_of(asked(self._connect, self._path, dict[str, Any]), self._prefix)
        except ConnectUnreachable as error:
            if not self._has_warned:
                hint = f"Kafka Connect must be 3.6 or later, and answer at {self._path}; until then no change is told"
                log.warning("nobody says how far is told", code=error.code, reason=str(error), hint=hint)
            self._has_warned = True
            return None
        self._has_warned = False
        if found is None:
            return None
        if self._first is None:
            self._first = found.gtids
        # A connector that began where the server had no GTID names its first one before it has told all of it.
        if found.gtids == self._first and not found.is_between:
            return None
        return position_of(found.gtids, self._server)


def offsets_of(answer: dict[str, Any], prefix: str) -> _Offsets | None:
    """What Kafka Connect's answer says; None if it says nothing yet, as while the connector makes its snapshot."""
    for each in answer.get("offsets") or ():
        partition, offset = each.get("partition") or {}, each.get("offset") or {}
        if partition.get("server") == prefix and offset.get("gtids") and not offset.get("snapshot"):
            return _Offsets(str(offset["gtids"]), not (offset.get("event") or offset.get("row")))
    return None


def position_of(gtids: str, server: str) -> GtidPosition:
    """The position of a connector's set of GTIDs. MariaDB's has the last one of each server of a domain."""
    try:
        if server == "MySQL":
            return MysqlGtidSet.of(gtids)
        found = GtidPosition({})
        for domain, origin, sequence in sorted(map(parse_gtid, gtids.split(",")), key=lambda gtid: gtid[2]):
            found.add(Gtid(domain, origin, sequence, 0))
    except (TokenError, ValueError) as error:
        raise DebeziumError(f"the connector is at {gtids!r}, which are no GTIDs of {server}") from error
    return found
