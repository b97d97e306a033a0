"""Applications give rows to the cache: what they have read, what they once read, and what was never true.

Which of them it is nobody tells. A row that is kept must be true of a state at or after all that its giver has seen;
what becomes of a lie shows in the answers to everybody.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from lab.simulation.engine import Outcome
from lab.simulation.installation.applications.caching import Caching
from lab.simulation.installation.committed import Image
from lab.simulation.installation.judging import Answer, Asked
from lab.simulation.installation.writing import Slot, image_of
from lab.simulation.whole_processes.words import EXPLAINS
from serving.client.client import Session
from serving.client.errors import ClientError

GIVES: Final = ("what it reads now", "what it gave before", "an invented row", "no row")


class Giving(Caching):
    """The op of an application that gives rows."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self._given: dict[Slot, Image] = {}
        """Row → what was read and given last."""

    def op_give(self, session: int, row: int, what: int, patience: int) -> None:
        """A session gives a row to the cache, as of all that it has seen."""
        name, client = self._session(session % 2)
        slot = self.slot(row)
        self._do(lambda: self._give(name, client, slot, what % len(GIVES)), patience)

    def _give(self, name: str, client: Session, slot: Slot, what: int) -> None:
        given: dict[str, Any] | None = None
        if what == 0:
            read = self.read(name, client, [slot])
            if not read:
                return
            given = dict(read[0].value) if read[0].value is not None else None
            self._given[slot] = image_of(given)
        elif what == 1:
            before = self._given.get(slot)
            given = json.loads(before) if before is not None else None
        elif what == 2:
            given = {**dict(zip(slot.table.columns, slot.table.key(slot.row), strict=True)), "version": -1}
        judge, table = self._judge_of([slot]), slot.table
        asked = judge.asked(name, self.kernel.now)
        try:
            kept = client.put_row(table.keyspace, table.name, given, *table.key(slot.row))
        except ClientError as error:
            self._given_back(name, asked, slot, what, error)
            return
        self.record_commits()
        self._count(f"given and {'kept' if kept.kept else 'not kept'}")
        self.say(f"session {name} gives {GIVES[what]} as {slot.text}: {given} is proved: {kept.why}")
        freshness = "fresh" if judge.owes(name, asked) else kept.freshness
        answer = Answer(slot.name, image_of(given), kept.served_from, freshness, kept.why)
        judge.answered(name, asked, self.kernel.now, [answer])

    def _given_back(self, name: str, asked: Asked, slot: Slot, what: int, error: ClientError) -> None:
        if error.code == "fill_lost" or (
            slot.table.is_coded and error.code == "bad_body"
        ):  # its key is another one now
            self._count("given and refused")
            self.say(f"session {name} gives {GIVES[what]} as {slot.text}: {error}")
        elif error.code == "bad_token":  # it has seen nothing, so its row has no place
            if self._judge_of([slot]).owes(name, asked):
                self.complain(EXPLAINS, f"session {name} has seen something, and is told: {error}")
        else:
            self._refused(name, [slot], error)
