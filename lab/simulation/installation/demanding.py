"""What must succeed once all faults have ended: reads that demand a token, or a time. A refusal is found out here.

While faults last nobody can say of a refusal whether it had to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Final

from lab.simulation.installation.finding import Finding, Stretch
from lab.simulation.installation.traffic import STALENESS_MS
from lab.simulation.installation.writing import KEYSPACE, Slot
from lab.simulation.whole_processes.run import CLIENT
from serving.client.client import Session

AT_A_REPLICA_MS: Final = 20_000
"""A replica proves no time of its own: only the cache does, by markers that come about once a second."""
Demands = tuple[str, Callable[[], object]]


class Demanding(Finding):
    """The reads of whoever demands something when all is well."""

    def refused_at_rest(self, within_s: float) -> str:
        """What a session is refused that has read before, or gets from before what it demands; "" if nothing."""
        name, client = self._new_session("")
        refused: list[str] = []

        def work() -> None:
            for keyspace, slots in groupby(self.slots, lambda slot: slot.table.keyspace):
                refused.extend(
                    what for what, succeeds in self._demands(name, client, keyspace, [*slots]) if not succeeds()
                )

        thread = self.kernel.spawn(CLIENT, work)
        if not self.run_until(lambda: thread.done, within_s):
            return "anything for long"
        return ", ".join(refused)

    def _demands(self, name: str, client: Session, keyspace: str, slots: list[Slot]) -> Iterator[Demands]:
        """Rows by a time and then, since that gives a token, by the token too; in a batch, and as a range."""
        table = slots[0].table
        for bound_ms in self._bounds(keyspace):
            yield f"a row of {bound_ms} ms ago", partial(self._is_proved, name, client, slots[:1], bound_ms)
            yield f"a range of {bound_ms} ms ago", partial(self.find, name, client, Stretch(table), 100, bound_ms)
        yield "all rows", partial(self.read, name, client, slots)
        yield "a range", partial(self.find, name, client, Stretch(table), 100)

    def _is_proved(self, name: str, client: Session, slots: Sequence[Slot], bound_ms: int) -> bool:
        return [row.freshness for row in self.read(name, client, slots, bound_ms)] == ["fresh"]

    def _bounds(self, keyspace: str) -> tuple[int, ...]:
        if keyspace != KEYSPACE or not self.reads_replica:
            return STALENESS_MS
        return () if self.follows_replica else (AT_A_REPLICA_MS,)
