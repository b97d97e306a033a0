"""Ops of the world of rows: reads that end half-way, wait in the middle of their proof, or lose their owner."""

from __future__ import annotations

from lab.simulation.models.network import Late
from lab.simulation.rows.finding import FindOps
from lab.simulation.rows.source import SLOTS


class InterruptedReadOps(FindOps):
    """Ops on a front while it answers."""

    def op_hold(self, session: int, slot: int, owner: int, front: int, late: int) -> None:
        """A front asks an owner, and is held: the question reaches the owner late (0), or the answer the front (1)."""
        self.network.late = Late.QUESTION if late % 2 == 0 else Late.ANSWER
        held = len(self.network.held)
        read = self._start_read(session, [SLOTS[self._slot(slot)].key], owner, front)
        self.network.late = None
        if len(self.network.held) > held and not read.task.done():  # else only a probe of an owner that was away
            self.count_fault("front held in a proof")
            self.say(f"  the {'answer' if late % 2 else 'question'} is late")

    def op_release(self, number: int, mode: int) -> None:
        """A front that was held goes on. The source answers it at once (0: and fills arrive; 1), or when told to."""
        if not self.network.held:
            return
        self.say("a front goes on that was held")
        if mode < 2:
            self.answers_at_once, self.network.is_slow = (False, True), mode == 1
        self.network.release(number % len(self.network.held))
        self._conclude()
        self.answers_at_once, self.network.is_slow = None, True

    def op_leave(self, number: int) -> None:
        """A client goes away while its read is under way, and the server cancels the request."""
        if not self.reads:
            return
        read = self.reads.pop(number % len(self.reads))
        self.count_fault("client gone")
        self.say(f"session {read.session.number} no longer waits for its read")
        read.task.cancel()
        self.loop.run()
        self._conclude()

    def op_tear(self, session: int, slot: int, owner: int, front: int) -> None:
        """The connection to the owner breaks in the middle of its answer. The source answers."""
        self.answers_at_once = False, True
        self.network.tears = owner
        read = self._start_read(session, [SLOTS[self._slot(slot)].key], owner, front)
        if self.network.tears is None:
            self.count_fault("torn answer")
            self.say("  the owner's answer broke off")
        self.network.tears = None
        self._complete(read)
        self.answers_at_once = None
