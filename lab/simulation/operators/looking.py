"""An operator who scrapes processes and asks fronts, in threads of the history's world."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import httpx2

from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.operators.judging import EXPLAINS, Complain, Samples, ScrapeJudge, check_described
from lab.simulation.operators.ports import Ports
from lab.simulation.operators.probes import Probe

TIMEOUT_S: Final = 20.0
Send = Callable[[httpx2.Request], httpx2.Response]


class Looking:
    """What an operator sees of a process; all of it is judged."""

    def __init__(self, kernel: Kernel, complain: Complain) -> None:
        self.ports = Ports(kernel)
        self._kernel = kernel
        self._complain = complain
        self._judge = ScrapeJudge(complain)
        self._description: dict[str, Any] = {}

    def scrape(self, process: str, done: Callable[[bool, Samples], None]) -> bool:
        """Asks a process at its port. ``done`` hears if it is ready, and what it shows. False: it has no port yet."""
        port = self.ports.of(process)
        if port is None:
            return False

        def work() -> None:
            statuses = {path: port.answer(path)[0] for path in ("/healthz", "/readyz", "/nothing")}
            status, text = port.answer("/metrics")
            if (statuses["/healthz"], statuses["/nothing"], status) != (200, 404, 200):
                self._complain(EXPLAINS, f"{process} answers {statuses}, and /metrics with {status}")
            done(statuses["/readyz"] == 200, self._judge.scraped(process, port, text))

        self._kernel.spawn(process, work, "scrape")
        return True

    def probe(self, front: object, probe: Probe, send: Send) -> httpx2.Response | None:
        """Sends a request to a front. None: nothing answered. ``front``: the life of its process."""
        try:
            if not self._description:
                self._description = json.loads(send(_request("GET", "/openapi.json")).content)
            response = send(_request(probe.method, probe.path))
            response.read()  # that of a stream comes in pieces, also if it is refused
        except (httpx2.HTTPError, OSError):
            return None
        text = response.content.decode()
        if probe.method == "HEAD":
            if text:
                self._complain(EXPLAINS, f"HEAD {probe.path} has a body: {text}")
        elif probe.template == "/metrics" and response.status_code == 200:
            self._judge.scraped(str(front), front, text)
        elif probe.template:
            check_described(self._description, probe.template, probe.method, response.status_code, text, self._complain)
        if not probe.code:  # a page for people says in words what is wrong
            return response
        code = json.loads(text).get("code", "") if response.status_code >= 400 and text else ""
        if code not in (probe.code, probe.unless or probe.code):
            self._complain(EXPLAINS, f"{probe.method} {probe.path} ends with {code or text!r}, not {probe.code}")
        return response


def _request(method: str, path: str) -> httpx2.Request:
    body = b"{}" if method == "POST" else b""
    return httpx2.Request(method, f"http://front{path}", content=body, extensions={"timeout": {"read": TIMEOUT_S}})
