"""Where clients that find nodes ask for rows: once all is quiet, at the node that holds the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import httpx2

from lab.simulation.engine import Outcome
from lab.simulation.installation.operating.locating import Locating
from lab.simulation.installation.parts import FRONTS, NODES
from lab.simulation.installation.writing import ACCOUNTS, ROWS, Slot
from lab.simulation.kernel.fronts import FrontTransport
from serving.client.client import FreshetClient
from stream.wire.keys import Layout, row_key

ROUTED_ROWS: Final = 2 * ROWS
"""Rows by which partitions are asked for; half of them are never written."""


class Routing(Locating):
    """A reader that finds nodes, which placed histories have, and the judge of where it asks."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self._carrier = FrontTransport(
            self.kernel, lambda: self.kernel.rng.choice(self._ports()), self.credentials.application
        )
        self._routed: FreshetClient | None = None

    def op_route(self, row: int, patience: int) -> None:
        """The reader reads a row."""
        if self.placed:
            self._do(lambda: self._read_routed(row % ROUTED_ROWS), patience)

    def _read_routed(self, row: int) -> str:
        """Why there is no answer; "" if there is one, which is judged."""
        if self._routed is None:  # not before the history runs: its clock would be the real one
            self._routed = FreshetClient("http://front", route=True, sleep=self._sleep, transport=self._carrier)
        return "" if self.read("", self._routed.session(), [Slot(ACCOUNTS, row)]) else "no answer"

    def check_routes(self, within_s: float) -> str:
        """Which rows the reader still asks for elsewhere than where they are held; "" if none."""
        return self.still_wrong(self._wrong_ways, within_s) if self.placed else ""

    def _wrong_ways(self) -> dict[str, str]:
        ways = ((row, self._wrong_way(row)) for row in range(ROUTED_ROWS))
        return {f"row {row}": what for row, what in ways if what}

    def _wrong_way(self, row: int) -> str:
        partition = Layout(self.partitions).partition_of(row_key(ACCOUNTS.name, ACCOUNTS.key(row)))
        answering = [name for name in FRONTS if name in self.wanted]
        holder, told = self.owner_told(answering[0], partition)
        if problem := self._read_routed(row):
            return problem
        meant = {FRONTS[name] for name in answering} & {httpx2.URL(NODES[holder]).port if holder in NODES else None}
        is_right = self._carrier.last_port in meant or not meant
        return "" if is_right else f"{told}, and port {self._carrier.last_port} is asked"
