"""The true versions of each row, and which answers they allow. Pure.

Writers record every committed change of a key with the sequence of its transaction. Readers record what they
demanded and what they got. Answers are judged after the writers are done, because a reader may see a commit before
its writer has recorded it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

RowKey = tuple[str, int]
"""(table, primary key)."""


class ReadAnswer(NamedTuple):
    """One read: the newest sequence of its demand (0: no demand) and the version that it got (None: no row)."""

    key: RowKey
    demanded: int
    version: int | None
    freshness: str
    served_from: str
    why: str


@dataclass(slots=True)
class RowVersions:
    """All versions that each key ever had, in commit order after `settle`. The caller serializes `record`."""

    changes: dict[RowKey, list[tuple[int, int | None]]] = field(default_factory=lambda: defaultdict(list))

    def record(self, sequence: int, key: RowKey, version: int | None) -> None:
        """Records that ``key`` has ``version`` (None: no row) from transaction ``sequence`` on."""
        self.changes[key].append((sequence, version))

    def settle(self) -> None:
        """Sorts the changes by sequence. Call it after the last writer is done."""
        for changes in self.changes.values():
            changes.sort()

    def allows(self, answer: ReadAnswer) -> bool:
        """Whether the key had the answered version at or after the demand."""
        changes = self.changes.get(answer.key, [])
        at = bisect_right(changes, answer.demanded, key=lambda change: change[0])
        states = [version for _, version in changes[at:]]
        states.append(changes[at - 1][1] if at else None)
        return answer.version in states

    def expected(self, answer: ReadAnswer) -> str:
        """One line that explains a wrong answer."""
        changes = self.changes.get(answer.key, [])
        return (
            f"{answer.key} demanded sequence {answer.demanded}, got version {answer.version} "
            f"({answer.served_from}, {answer.freshness}: {answer.why}); history {changes[-6:]}"
        )
