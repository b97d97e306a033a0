"""Credentials in guarded histories: fronts and owners answer nobody without one, and each only what it is given for.

Applications, operators and fronts have secrets, which operators exchange while all of them go on. Strangers, and
holders of lesser credentials, ask fronts too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from consumers.owner.client import Identity
from lab.simulation.installation.writing import KEYSPACE, OTHER_KEYSPACE
from lab.simulation.kernel.scheduler import Kernel
from stream.access.grants import ADMIN, FILL, METRICS, READ, Access, Credential, Grant, digest_of

NO_STRANGERS: Final = "nothing for strangers"
DENIED: Final = frozenset({"unauthorized", "forbidden", "rate_limited"})
"""Codes that are not for who has a right to ask."""
APPLICATION: Final = "application"
OPERATOR: Final = "operator"
FRONT: Final = "front"
GRANTS: Final = (
    Grant(APPLICATION, frozenset({READ, FILL})),
    Grant(OPERATOR, frozenset({ADMIN})),
    Grant(FRONT, frozenset({READ, FILL})),
    Grant("reader", frozenset({READ})),
    Grant("scraper", frozenset({METRICS})),
    Grant("elsewhere", frozenset({READ}), frozenset({OTHER_KEYSPACE})),
    Grant("of before", frozenset({ADMIN}), expires_s=1.0),
)
"""Of the last one the time is over."""
ROW: Final = f"/v1/rows/{KEYSPACE}/accounts/1"
LETTERS: Final = f"/v1/dead-letters/{KEYSPACE}"
PATHS: Final = (ROW, LETTERS, "/metrics", "/openapi.json", f"/v1/stream?keyspace={KEYSPACE}&heartbeat_ms=1", "/healthz")
SECRETS: Final[Mapping[str, str]] = {
    "nobody": "",
    "guesser": "freshet_guessed",
    "of before": "of before",
    "reader": "reader",
    "scraper": "scraper",
    "elsewhere": "elsewhere",
    "leaver": "",
}
"""Who asks → the secret that is shown. The leaver's is one that applications had before the last exchange, if any."""
_UNKNOWN: Final = ("nobody", "guesser", "of before", "leaver")
_OPEN: Final = frozenset({"/healthz"})
_ROLES: Final[Mapping[str, Mapping[str, str]]] = {
    "reader": {LETTERS: "forbidden", PATHS[4]: "bad_parameter"},
    "scraper": {ROW: "forbidden", LETTERS: "forbidden", PATHS[4]: "forbidden"},
    "elsewhere": {ROW: "unknown_keyspace", LETTERS: "forbidden", "/metrics": "forbidden", PATHS[4]: "bad_parameter"},
}
"""Who asks → path → the code with which it must be refused; paths that are left out are answered."""


class Asked(NamedTuple):
    """A request of somebody who may not, or who may. ``code``: with which it must be refused; "": it must not be."""

    who: str
    path: str
    code: str


def asked(who: int, what: int) -> Asked:
    """A request by any numbers."""
    name, path = list(SECRETS)[who % len(SECRETS)], PATHS[what % len(PATHS)]
    if name in _UNKNOWN:
        return Asked(name, path, "" if path in _OPEN else "unauthorized")
    return Asked(name, path, _ROLES[name].get(path, ""))


class Credentials:
    """Those that are known, and what is shown. In a history that is not guarded there are none."""

    def __init__(self, kernel: Kernel, *, guarded: bool) -> None:
        self._kernel = kernel
        self.guarded = guarded
        self._round = 0
        self._gone = ""
        self._is_exchanging = False
        self._known = self._of(0)
        self._accesses: dict[str, Access] = {}
        """Process → what it asks, while it lives."""

    def _of(self, number: int) -> list[Credential]:
        secrets = {grant.name: secret_of(grant.name, number) for grant in GRANTS}
        return [Credential(grant, digest_of(secrets[grant.name].encode())) for grant in GRANTS]

    def access(self, process: str) -> Access:
        """What a process asks that starts now."""
        self._accesses[process] = Access(self._known if self.guarded else ())
        return self._accesses[process]

    def identity(self, name: str) -> Identity | None:
        """What somebody shows to owners."""
        return Identity(secret=lambda: self.secret(name)) if self.guarded else None

    def secret(self, name: str) -> str:
        """What somebody shows now; "" in a history that is not guarded."""
        return secret_of(name, self._round) if self.guarded else ""

    def of_stranger(self, name: str) -> str:
        """What a stranger shows."""
        return self._gone if name == "leaver" else SECRETS[name]

    def application(self) -> str:
        """That of applications."""
        return self.secret(APPLICATION)

    def operator(self) -> str:
        """That of operators."""
        return self.secret(OPERATOR)

    @property
    def shown(self) -> Mapping[str, Any]:
        """What clients of applications are made with."""
        return {"token": self.application} if self.guarded else {}

    def exchange(self, pause_s: float) -> None:
        """Everybody gets a new secret: it is known besides the old one, then shown, and then the old one is unknown.

        Who asks again with the secret of now must reach a front before that is exchanged, too: so one at a time.
        """
        if self._is_exchanging:
            return
        self._is_exchanging = True
        new = self._of(self._round + 1)
        old = self.application()
        self._renew([*self._known, *new])
        self._kernel.wait(lambda: False, pause_s)
        self._round += 1
        self._kernel.wait(lambda: False, pause_s)
        self._renew(new)
        self._gone = old
        self._kernel.wait(lambda: False, pause_s)
        self._is_exchanging = False

    def _renew(self, known: list[Credential]) -> None:
        self._known = known
        for access in self._accesses.values():
            access.renew(known)


def secret_of(name: str, number: int) -> str:
    """The secret that somebody has after so many exchanges. Those of strangers never change."""
    return f"{name} {number}" if name in (APPLICATION, OPERATOR, FRONT) else name
