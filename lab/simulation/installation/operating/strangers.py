"""Whoever asks a front of a guarded history without the right to, and operators who exchange all secrets."""

from __future__ import annotations

from functools import partial

import httpx2

from lab.simulation.installation.operating.guarding import DENIED, NO_STRANGERS, Asked, asked
from lab.simulation.installation.operating.letters import TIMEOUT_S
from lab.simulation.installation.operating.routing import Routing
from lab.simulation.installation.parts import FRONTS
from lab.simulation.kernel.fronts import FrontTransport
from lab.simulation.whole_processes.run import OPERATOR, PAUSES_S


class Strangers(Routing):
    """The ops on credentials. Other histories than guarded ones have none."""

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

    def op_exchange(self, pause: int) -> None:
        """Operators give everybody a new secret, and take the old ones away."""
        if self.credentials.guarded:
            self.say("all secrets are exchanged")
            self.kernel.spawn(OPERATOR, partial(self.credentials.exchange, PAUSES_S[pause % len(PAUSES_S)]))
