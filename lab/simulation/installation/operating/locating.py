"""Whom fronts believe to answer for a partition: what they tell of it, in what order, and what they tell in the end.

Fronts are in zones and keep a file of locations; followers come and go. What a front tells never goes back, but for
what no announcement has followed and for what somebody had it forget (docs/internals/locations.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import httpx2

from lab.simulation.engine import Outcome
from lab.simulation.installation.operating.snapshots import Snapshotting
from lab.simulation.installation.parts import CONSUMERS, FOLLOWER, FRONTS, PLACED_BOUNDS
from lab.simulation.installation.traffic import TIMEOUT_S
from lab.simulation.installation.writing import KEYSPACE
from lab.simulation.kernel.fronts import FrontTransport
from lab.simulation.kernel.switching import Process
from lab.simulation.whole_processes.run import CLIENT, Bound

NEVER_BACK: Final = "locations never go back"
ASKS: Final[Sequence[tuple[str, str, dict[str, Any] | None]]] = (
    ("GET", "/v1/locations", None),
    ("GET", "/v1/locations?entity=partition&keyspace=shop&partition=0", None),
    ("GET", "/v1/locations?entity=partition&keyspace=shop&partition=1&force=true", None),
    ("GET", "/v1/locations?entity=keyspace&keyspace=shop", None),
    ("GET", "/v1/locations?entity=distributed", None),
    ("GET", "/v1/locations?entity=events&keyspace=shop&force=true", None),
    ("GET", "/v1/locations?entity=root", None),
    ("GET", "/v1/locations/shop/0?wait_ms=500", None),
    ("POST", "/v1/locations:refresh", {}),
    ("POST", "/v1/locations:refresh", {"keyspace": KEYSPACE, "flush": True}),
)
"""Method, path and body of what an operator asks a front. The fifth is about instances."""
UNCONFIRMED: Final = ("its instances", "an instance that it had moved from", "the file of an earlier process")
"""Who has said what no announcement may have followed."""
DOUBTFUL: Final = ("in doubt", "withdrawn", "does not answer", "unverified")
Version = tuple[int, int, str]


class Locating(Snapshotting):
    """The ops on locations, and their judge."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self._versions: dict[tuple[Process, str, int], tuple[Version, str, float]] = {}
        """The life of a front, a keyspace and a partition → the version that it told last, who said so, and when."""

    def bounds(self) -> Sequence[Bound]:
        """See `WholeProcesses.bounds`."""
        return [*super().bounds(), *(PLACED_BOUNDS if self.placed else ())]

    def op_locate(self, front: int, what: int, patience: int) -> None:
        """An operator asks a front who answers for what, or has it know that anew."""
        name = [*FRONTS][front % len(FRONTS)]
        if self.kernel.is_running(name):
            self._do(lambda: self._ask_front(name, ASKS[what % len(ASKS)]), patience)

    def _ask_front(self, name: str, ask: tuple[str, str, dict[str, Any] | None]) -> list[dict[str, Any]]:
        """The locations that a front tells, which are judged. None if it does not answer."""
        method, path, body = ask
        asked_at = self.kernel.now
        life = self.kernel.process(name)
        transport = FrontTransport(self.kernel, lambda: FRONTS[name], self.credentials.operator)
        content = b"" if body is None else json.dumps(body).encode()
        extensions = {"timeout": {"read": TIMEOUT_S}}
        try:
            response = transport.handle_request(
                httpx2.Request(method, f"http://front{path}", content=content, extensions=extensions)
            )
        except (httpx2.HTTPError, OSError):
            return []
        found = response.json()
        self._count(f"locations {response.status_code}")
        self.say(f"{name}: {method} {path} {body or ''}: {response.status_code}: {found}")
        if body is not None and body.get("flush"):
            self._versions = {place: told for place, told in self._versions.items() if place[0] is not life}
        places: list[dict[str, Any]] = found.get("locations", []) if method == "GET" and response.is_success else []
        for each in places:
            if each["entity"] == "partition":
                self._judge_place(name, life, asked_at, each)
        return places

    def _judge_place(self, name: str, life: Process, asked_at: float, told: dict[str, Any]) -> None:
        place = life, told["keyspace"], told["partition"]
        version = told.get("epoch", 0), told.get("term", 0), told.get("instance", "")
        before, said_by, heard_at = self._versions.get(place, (version, "", 0.0))
        is_confirmed = not any(each in said_by for each in UNCONFIRMED)
        is_other_topic = "topic replaced" in self.struck  # whose numbers begin anew
        if version[:2] < before[:2] and asked_at >= heard_at and is_confirmed and not is_other_topic:
            what = f"{name} tells {version} of {place[1]}/{place[2]} after {before}, which was {said_by}"
            self.complain(NEVER_BACK, what)
        self._versions[place] = version, told.get("why", ""), self.kernel.now

    def op_follower(self, kill: int, pause: int) -> None:
        """A follower begins, or dies."""
        if not self.placed:
            return
        if self.kernel.is_running(FOLLOWER) and kill % 2:
            self.say(f"{FOLLOWER} is killed")
            self.kernel.kill(FOLLOWER)
        elif not self.kernel.is_running(FOLLOWER):
            self.say(f"{FOLLOWER} begins")
            self.start(FOLLOWER)
        self.pause(pause)

    def check_locations(self, within_s: float) -> str:
        """What fronts believe wrongly once all is quiet; "" if each of them tells who answers."""
        return self.still_wrong(self._wrong_places, within_s) if self.placed else ""

    def still_wrong(self, look: Callable[[], dict[str, str]], within_s: float) -> str:
        """What ``look`` finds wrong, place by place, after so long; "" as soon as it finds nothing."""
        wrong: dict[str, str] = {}

        def work() -> None:
            nonlocal wrong
            end = self.kernel.now + within_s
            while self.kernel.now < end and (wrong := look()):
                self._sleep(1.0)

        thread = self.kernel.spawn(CLIENT, work)
        self.run_until(lambda: thread.done, 2 * within_s)
        return "; ".join(f"{place}: {what}" for place, what in wrong.items())

    def _wrong_places(self) -> dict[str, str]:
        found = {}
        for name in FRONTS:
            for partition in range(self.partitions if name in self.wanted else 0):
                owner, what = self.owner_told(name, partition)
                if owner not in CONSUMERS or any(each in what for each in DOUBTFUL):
                    found[f"{name} of {partition}"] = what
        return found

    def owner_told(self, name: str, partition: int) -> tuple[str, str]:
        """The process that a front names for a partition, or ""; and all that it says of it."""
        path = f"/v1/locations?entity=partition&keyspace={KEYSPACE}&partition={partition}&force=true"
        places = self._ask_front(name, ("GET", path, None))
        if not places:
            return "", "no answer"
        address = places[0]["address"]
        owner = self.kernel.network.listening().get(int(address.rpartition(":")[2] or 0), "")
        return owner, f"{address} ({owner or 'nobody'}), {places[0].get('why', '')}"
