"""Settings shared by all Kafka clients, and the errors for a broker that is unreachable or refuses a request.

An ``AdminClient`` is used in a ``with``, or ended by who has it. A failed request's error holds the frames it went
through, and the client in them; the client's own background thread may be the last to let go of the error. librdkafka
ends a process in which a client is destroyed in a thread of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any, Final, Self, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tokens.errors import FreshetError

Settings = dict[str, Any]
T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 5.0
"""How long a request that a person waits for may take before Kafka counts as unreachable."""
RETRY_INTERVAL_S: Final = 0.05
DEFAULT_PREFIX: Final = "freshet"

_DISCARDED_LOG: Final = logging.getLogger("freshet.librdkafka")
_DISCARDED_LOG.addHandler(logging.NullHandler())
_DISCARDED_LOG.propagate = False

_UNREACHABLE_CODES: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._DESTROY,  # the connection was lost while a request was under way
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
    }
)

_TRANSIENT_CODES: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError._NOENT,  # no partition has a leader: brokers that are back have not elected any yet
    }
)

NO_LEADER_HINT: Final = "check that every broker is running"

RESERVED_SETTINGS: Final = frozenset(
    {
        "acks",
        "auto.offset.reset",
        "bootstrap.servers",
        "check.crcs",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.idempotence",
        "enable.partition.eof",
        "group.id",
        "group.instance.id",
        "isolation.level",
        "message.max.bytes",
        "metadata.broker.list",
        "partition.assignment.strategy",
        "request.required.acks",
        "transaction.timeout.ms",
        "transactional.id",
    }
)
"""Client settings that users may not set: correctness depends on them, or Freshet has its own setting for them."""


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """Where Kafka is, and the settings that all its clients share.

    ``bootstrap``: addresses (``host:port,…``). ``extra``: librdkafka settings for security and timeouts. They may hold
    a password, so they are never printed. ``prefix`` begins every name that this installation has in Kafka, so that
    two installations on one Kafka never meet. It has no dot, so no two of them make the same name. ``replicas``: of
    each topic that is made, whoever needs it first.
    """

    bootstrap: str
    extra: Mapping[str, str] = field(default_factory=dict, repr=False)
    prefix: str = DEFAULT_PREFIX
    replicas: int = 1

    def group_id(self, group: str = "") -> str:
        """The id in Kafka of the consumer group ``group``; empty: the installation's own."""
        return f"{self.prefix}.{group}" if group else self.prefix

    def transactional_id(self, keyspace: str, writer: str) -> str:
        """The id of whoever writes one shard or one log. Producers with the same one fence each other."""
        return f"{self.prefix}.{keyspace}.{writer}"

    def check(self) -> Self:
        """This cluster, if librdkafka accepts ``extra``. Raises `KafkaSettingsError`, which shows no value."""
        if not self.extra:
            return self
        taken = sorted(RESERVED_SETTINGS & self.extra.keys())
        if taken:
            raise KafkaSettingsError(
                f"kafka.extra may not set {taken[0]}: Freshet's guarantees depend on it", hint="remove it"
            )
        try:
            with AdminClient(client_settings(self)):
                pass
        except KafkaException as error:
            raise KafkaSettingsError(
                f"kafka.extra: {_without_values(error.args[0].str(), self.extra)}",
                hint="librdkafka's CONFIGURATION.md lists the valid names and values",
            ) from None
        return self


class KafkaSettingsError(FreshetError):
    """Client settings that can't be used; code ``bad_kafka_settings``."""

    code = "bad_kafka_settings"


class KafkaUnreachable(FreshetError):
    """No broker answered in time, or none that leads what was asked for; code ``kafka_unreachable``."""

    code = "kafka_unreachable"


class KafkaRequestError(FreshetError):
    """A broker refused a request; code ``kafka_error``."""

    code = "kafka_error"


class KafkaDenied(KafkaRequestError):
    """The broker knows this client, and does not let it do this; code ``kafka_denied``."""

    code = "kafka_denied"


_DENIED_CODES: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "a right on a topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "a right on its consumer group (Describe, and Read if it joins the group)",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "the right Write on a transactional id",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "the right Create on the topic",
}
"""Code → what is lacking."""


def client_settings(kafka: KafkaCluster, **more: Any) -> Settings:
    """librdkafka settings for any client of ``kafka``.

    librdkafka's own log is discarded: whatever matters is also raised as an error.
    """
    return {
        "bootstrap.servers": kafka.bootstrap,
        "log_level": 0,
        "logger": _DISCARDED_LOG,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "topic.metadata.refresh.interval.ms": 60_000,
        **more,
        **kafka.extra,
    }


def _without_values(text: str, extra: Mapping[str, str]) -> str:
    """``text`` with every value of ``extra`` masked: one of them may be a password."""
    for value in sorted(extra.values(), key=len, reverse=True):
        text = text.replace(value, "***") if value else text
    return text


def what_lacks(error: KafkaError, user: str = "") -> str:
    """A hint that says which right ``user`` has not; empty if the broker refused for another reason."""
    lacking = _DENIED_CODES.get(error.code(), "")
    page = "docs/operating/security.md has those of each process, as commands"
    return f"{user or 'this client'} lacks {lacking}: {page}" if lacking else ""


def kafka_error(error: KafkaException | KafkaError, kafka: KafkaCluster, doing: str) -> FreshetError:
    """The `FreshetError` to raise for ``error``. ``doing``: the failed action, for the message."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if isinstance(cause, KafkaError) and cause.code() in _UNREACHABLE_CODES:
        return KafkaUnreachable(
            f"no Kafka broker answers at {kafka.bootstrap} ({doing})",
            hint="check that it is running and that the address is right"
            + ("; also check the security settings in kafka.extra" if kafka.extra else ""),
        )
    text = cause.str() if isinstance(cause, KafkaError) else str(cause)
    missing = isinstance(cause, KafkaError) and cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    if isinstance(cause, KafkaError) and cause.code() in _TRANSIENT_CODES and not missing:
        return KafkaUnreachable(f"Kafka at {kafka.bootstrap} cannot answer now ({doing}): {text}", hint=NO_LEADER_HINT)
    if isinstance(cause, KafkaError) and (lacking := what_lacks(cause, kafka.extra.get("sasl.username", ""))):
        return KafkaDenied(f"Kafka at {kafka.bootstrap} denied ({doing}): {text}", hint=lacking)
    hint = "check the keyspace's name; its source creates the topics" if missing else ""
    return KafkaRequestError(f"Kafka at {kafka.bootstrap} refused ({doing}): {text}", hint=hint)


def call_kafka(kafka: KafkaCluster, doing: str, request: Callable[[], T], *, patience_s: float = 0.0) -> T:
    """Return ``request()``. Raises `KafkaUnreachable` or `KafkaRequestError` in place of Kafka's exceptions.

    For up to ``patience_s`` seconds it is repeated after transient errors, such as a topic or leader that the broker
    does not know yet. Those are an outage that lasts, once patience ends, but for a topic that is not there.
    """
    deadline = monotonic() + patience_s
    while True:
        try:
            return request()
        except KafkaException as error:
            if error.args[0].code() not in _TRANSIENT_CODES or monotonic() >= deadline:
                raise kafka_error(error, kafka, doing) from error
        sleep(RETRY_INTERVAL_S)
