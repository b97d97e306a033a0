"""Who asks a front of a guarded history without the right to; operators who exchange secrets, or look into topics."""

from __future__ import annotations

from functools import partial
from typing import Final

import httpx2

from lab.simulation.installation.kafka_faults import EVENTS
from lab.simulation.installation.operating.guarding import DENIED, NO_STRANGERS, Asked, asked
from lab.simulation.installation.operating.latest import Change, latest
from lab.simulation.installation.operating.letters import TIMEOUT_S
from lab.simulation.installation.operating.routing import Routing
from lab.simulation.installation.parts import FRONTS
from lab.simulation.installation.processes import KAFKA
from lab.simulation.installation.writing import ACCOUNTS, KEYSPACE, ORDERS
from lab.simulation.kernel.fronts import FrontTransport
from lab.simulation.whole_processes.run import OPERATOR, PAUSES_S
from lab.simulation.whole_processes.words import EXPLAINS
from stream.changes.last import last_changes
from tokens.errors import FreshetError

TABLES: Final = frozenset({ACCOUNTS.name, ORDERS.name, f"{KEYSPACE}.gone"})


class Strangers(Routing):
    """The ops on credentials, of guarded histories alone, and on what topics tell."""

    def op_stranger(self, front: int, who: int, what: int, patience: int) -> None:
        """Somebody asks a front who may not, or not for this."""
        name = [*FRONTS][front % len(FRONTS)]
        if self.credentials.guarded and self.kernel.is_running(name):
            self._do(lambda: self._ask_as(name, asked(who, what)), patience)

    def _ask_as(self, front: str, what: Asked) -> None:
        secret = self.credentials.of_stranger(what.who)
        transport = FrontTransport(self.kernel, lambda: FRONTS[front], lambda: secret)
        url = f"http://front{what.path}"
        try:
            request = httpx2.Request("GET", url, extensions={"timeout": {"read": TIMEOUT_S}})
            response = transport.handle_request(request)
            response.read()
        except (httpx2.HTTPError, OSError):
            return
        code = str(response.json()["code"]) if response.status_code >= 400 else ""
        self._count(f"stranger: {code or 'answered'}")
        self.say(f"{what.who} asks {front} for {what.path}: {response.status_code} {code}")
        if code != what.code and (what.code or code in DENIED):
            told = f"with {code}" if code else "as anybody who may"
            self.complain(NO_STRANGERS, f"{what.who} is answered {told} when asking {front} for {what.path}")

    def op_latest(self) -> None:
        """An operator asks when each table has changed last, as ``freshet lag --tables`` does."""
        self.kernel.spawn(OPERATOR, self._ask_latest)
        self.let(1.0)

    def _ask_latest(self) -> None:
        topic = self.kafka.topics.get(EVENTS)
        if topic is None:
            return
        ends = {number: log.stable for number, log in enumerate(topic.logs)}
        before = latest(topic.logs, ends, TABLES)
        try:
            told = last_changes(KAFKA, EVENTS, ends, TABLES)
        except FreshetError as error:
            self.say(f"the operator is told: {error}")
            return
        found = {
            table: Change(
                (each.timestamp, each.epoch, each.ordinal), each.kind, each.shard, each.partition, each.offset
            )
            for table, each in told.items()
        }
        self._count("last changes told")
        if found != before and self.kafka.topics.get(EVENTS) is topic and before == latest(topic.logs, ends, TABLES):
            self.complain(EXPLAINS, f"the last changes are {before}, and are said to be {found}")

    def op_exchange(self, pause: int) -> None:
        """Operators give everybody a new secret, and take the old ones away."""
        if self.credentials.guarded:
            self.say("all secrets are exchanged")
            self.kernel.spawn(OPERATOR, partial(self.credentials.exchange, max(1.0, PAUSES_S[pause % len(PAUSES_S)])))
