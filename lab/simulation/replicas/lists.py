"""The write ids of one table as the set of those that a reader may see, and Hive's lists of them as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

NONE_OPEN: Final = 2**63 - 1


class Listed(NamedTuple):
    """What a list says, and its text."""

    text: str
    table: str
    hwm: int
    valid: frozenset[int]
    aborted: frozenset[int]


@dataclass
class Table:
    """A table's write ids, each open, committed or aborted."""

    name: str
    states: dict[int, str] = field(default_factory=dict)

    def ids(self, state: str) -> list[int]:
        """The ids in a state, ascending."""
        return sorted(write_id for write_id, each in self.states.items() if each == state)

    def listed(self, own: int = 0, *, forgets: bool = False, short: bool = False) -> Listed:
        """The list of a reader, whose own open id is ``own``.

        ``forgets``: the metastore has forgotten which ids were aborted.
        ``short``: no table is named, and every exception is open.
        """
        opened = [each for each in self.ids("open") if each != own]
        aborted = [] if forgets else self.ids("aborted")
        hwm = len(self.states)
        valid = frozenset(self.states).difference(opened, aborted)
        if short:
            text = f"[{hwm}:{','.join(map(str, sorted(opened + aborted)))}]"
            return Listed(text, "", hwm, valid, frozenset())
        min_open = min(opened, default=NONE_OPEN)
        ids = (",".join(map(str, each)) for each in (opened, aborted))
        return Listed(f"{self.name}:{hwm}:{min_open}:{':'.join(ids)}", self.name, hwm, valid, frozenset(aborted))


def covers(entry: Listed, demand: Listed) -> bool:
    """Whether a value with the list ``entry`` serves a reader with the list ``demand`` (docs/concepts/catalog.md)."""
    same_table = entry.table.lower() == demand.table.lower() or not entry.table or not demand.table
    return same_table and demand.valid - entry.aborted <= entry.valid
