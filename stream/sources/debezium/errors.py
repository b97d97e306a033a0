"""What a Debezium source refuses."""

from __future__ import annotations

from stream.sources.mariadb.connection import MariaDBUnreachable
from tokens.errors import FreshetError


class DebeziumError(FreshetError):
    """A connector, or messages of it, that a source can't use.

    Codes: ``debezium_unsupported`` (another connector, converter or kind of message), ``debezium_bad_connector`` (its
    configuration hides or bends changes; the hint is the fix), ``debezium_xa_transaction``, ``debezium_tagged_gtids``.
    """

    code = "debezium_unsupported"


class ConnectUnreachable(MariaDBUnreachable):
    """Kafka Connect does not answer, or is not ready to: a retry may help.

    Codes: ``connect_unreachable``, ``debezium_no_connector`` (it has none, as while its worker starts).
    """

    code = "connect_unreachable"
