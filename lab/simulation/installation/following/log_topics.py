"""``freshet log --to-topic`` keeps a complete log of a keyspace in a topic, and is killed anywhere.

The topic's records are read by fastavro and ``schemas/log`` alone, put together to the events of a change stream, and
judged as those of the files are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any, Final

from fastavro import schemaless_reader

from lab.simulation.engine import Outcome
from lab.simulation.installation.following.logs import Logging
from lab.simulation.installation.processes import KAFKA
from lab.simulation.installation.writing import KEYSPACE
from lab.simulation.naive.messages import HEADER, SCHEMAS, known_schemas
from lab.simulation.whole_processes.run import Bound
from serving.changelog import records, topic
from serving.changelog.files import Heading
from serving.changelog.records import own_framing
from serving.changelog.topic import LogTopic
from serving.client.client import FreshetClient
from serving.client.errors import NotFoundError, Unavailable, Unreachable
from serving.client.streaming import StreamChange, StreamColumn, StreamEvent

TOPIC_LOGGERS: Final = ("topic-logger-0", "topic-logger-1")
"""One may be started while the other one still runs, by mistake."""
_SCHEMAS: Final = known_schemas(SCHEMAS / "log")
RECORD_BYTES: Final = 3_200
MARGIN_BYTES: Final = 300
"""So small that transactions are cut into parts."""


class TopicLogging(Logging):
    """The ops of a log in a topic."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self._topics = 0
        """How many logs were begun in topics."""

    def bounds(self) -> Sequence[Bound]:
        """See `WholeProcesses.bounds`."""
        return [*super().bounds(), (topic, "RECORD_BYTES_MAX", RECORD_BYTES), (records, "MARGIN_BYTES", MARGIN_BYTES)]

    def op_keep_topic(self, which: int, pause: int) -> None:
        """Somebody begins to keep a log in a topic, or goes on with it; or its process is killed."""
        name = TOPIC_LOGGERS[which % len(TOPIC_LOGGERS)]
        if self.kernel.is_running(name):
            self.say(f"{name} is killed")
            self._stop_topic_logger(name)
        else:
            self._start_topic_logger(name)
        self.pause(pause)

    def _stop_topic_logger(self, name: str) -> None:
        self.kernel.kill(name)

    def _start_topic_logger(self, name: str) -> None:
        self._topics = self._topics or 1
        self.say(f"{name} writes log {self._topics} in a topic")
        self.kernel.spawn(name, self._keep_topic)

    def _keep_topic(self) -> None:
        def opened(client: FreshetClient) -> LogTopic:
            def kinds(table: str) -> Mapping[str, str]:
                return self._kinds(client, table)

            return LogTopic(KAFKA, self._name(self._topics), Heading(KEYSPACE, []), own_framing(), kinds)

        while True:
            number = self._topics
            if not self.keep_writing(opened):
                return
            self._topics = max(self._topics, number + 1)

    def _kinds(self, client: FreshetClient, table: str) -> Mapping[str, str]:
        """As ``freshet log`` asks for them."""
        while True:
            try:
                return {column.name: column.kind for column in client.describe(KEYSPACE, table).columns}
            except NotFoundError:
                return {}
            except (Unavailable, Unreachable):
                self.kernel.wait(lambda: False, 1.0)

    def _name(self, log: int) -> str:
        return f"log-{log}"

    def _events(self, log: int) -> Iterator[StreamEvent]:
        """What the records of a log say."""
        found = self.kafka.topics.get(self._name(log))
        parts: list[dict[str, Any]] = []
        for record in found.logs[0].committed(0, found.logs[0].stable) if found is not None else ():
            value = record.value or b""
            name, schema = _SCHEMAS[value[2:HEADER]]
            fields: Any = schemaless_reader(BytesIO(value[HEADER:]), schema, None)
            if name == "Transaction":
                parts.append(fields)
                if len(parts) == fields["parts"]:
                    yield _transaction(parts)
                    parts = []
            else:
                yield StreamEvent(name.lower(), **{each: fields[each] for each in fields if each != "keyspace"})

    def check_logged(self, within_s: float) -> str:
        """See `Logging.check_logged`; of the log in a topic, too."""
        if lacks := super().check_logged(within_s):
            return lacks
        if not self._topics or self.outcome.violations:
            return ""
        self._stop_topic_logger(TOPIC_LOGGERS[1])
        if not self.kernel.is_running(TOPIC_LOGGERS[0]):
            self._start_topic_logger(TOPIC_LOGGERS[0])
        return self.lacks(lambda: self._topics, self._events, "log in topic", within_s)


def _transaction(parts: Sequence[Mapping[str, Any]]) -> StreamEvent:
    changes = [
        StreamChange(**{**each, "columns": [StreamColumn(**column) for column in each["columns"]]})
        for part in parts
        for each in part["changes"]
    ]
    head = {name: parts[0][name] for name in ("shard", "epoch", "gtid", "timestamp", "token")}
    return StreamEvent("transaction", changes=changes, **head)
