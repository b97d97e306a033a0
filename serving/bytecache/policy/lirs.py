"""LIRS: entries are kept by the distance between their last two reads (Jiang and Zhang, SIGMETRICS 2002).

``LIR`` entries have a short distance and stay. The others (``HIR``) have a small share of the room and leave in the
order in which they came. The stack holds entries by their last read, also some that left (ghosts): an entry that
is read while it is in the stack had a shorter distance than the lowest ``LIR`` entry, and takes its place.

Ghosts are bounded by their own queue, so that no operation walks the stack (IMPALA-10127 did: 1.3 K/s, not 3 M/s).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

HIR_SHARE: Final = 0.05
"""Of the cost, for entries without a short distance. Impala's is the same."""
GHOSTS_PER_ENTRY: Final = 2


class Lirs:
    """The stack's end is the last read. ``_lir`` and ``_hir``: key → cost of what is here."""

    def __init__(self) -> None:
        self._stack: OrderedDict[int, None] = OrderedDict()
        self._lir: dict[int, int] = {}
        self._hir: OrderedDict[int, int] = OrderedDict()
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._lir_cost = 0
        self._hir_cost = 0
        self._full = False

    @property
    def cost(self) -> int:
        """Of all entries, in bytes."""
        return self._lir_cost + self._hir_cost

    def __len__(self) -> int:
        return len(self._lir) + len(self._hir)

    def __contains__(self, key: object) -> bool:
        return key in self._lir or key in self._hir

    def insert(self, key: int, cost: int) -> None:
        known = key in self._ghosts
        if known:
            del self._ghosts[key]
        self._push(key)
        if known or not self._full:
            self._lir[key] = cost
            self._lir_cost += cost
            if self._full:
                self._demote_surplus()
        else:
            self._hir[key] = cost
            self._hir_cost += cost

    def hit(self, key: int) -> bool:
        if key in self._lir:
            self._push(key)
            self._prune()
        elif key in self._hir:
            if key in self._stack:
                cost = self._hir.pop(key)
                self._hir_cost -= cost
                self._lir[key] = cost
                self._lir_cost += cost
                self._push(key)
                self._demote_surplus()
            else:
                self._push(key)
                self._hir.move_to_end(key)
        else:
            return False
        return True

    def resize(self, key: int, cost: int) -> None:
        if key in self._lir:
            self._lir_cost += cost - self._lir[key]
            self._lir[key] = cost
        else:
            self._hir_cost += cost - self._hir[key]
            self._hir[key] = cost

    def remove(self, key: int) -> int:
        self._stack.pop(key, None)
        self._ghosts.pop(key, None)
        cost = self._lir.pop(key, None)
        if cost is not None:
            self._lir_cost -= cost
            self._prune()
            return cost
        cost = self._hir.pop(key, 0)
        self._hir_cost -= cost
        return cost

    def evict(self) -> tuple[int, int] | None:
        self._full = True
        self._demote_surplus()
        if not self._hir and self._lir:
            self._demote()
        if not self._hir:
            return None
        key, cost = self._hir.popitem(last=False)
        self._hir_cost -= cost
        if key in self._stack:
            self._ghosts[key] = None
            while len(self._ghosts) > GHOSTS_PER_ENTRY * max(1, len(self)):
                oldest, _ = self._ghosts.popitem(last=False)
                del self._stack[oldest]
        return key, cost

    def _push(self, key: int) -> None:
        self._stack[key] = None
        self._stack.move_to_end(key)

    def _demote_surplus(self) -> None:
        while self._lir and self._hir_cost < HIR_SHARE * self.cost:
            self._demote()

    def _demote(self) -> None:
        """The LIR entry at the bottom of the stack becomes HIR."""
        self._prune()
        key, _ = self._stack.popitem(last=False)
        cost = self._lir.pop(key)
        self._lir_cost -= cost
        self._hir[key] = cost
        self._hir_cost += cost
        self._prune()

    def _prune(self) -> None:
        """The stack's bottom is always a LIR entry: what lies below has no distance to compare with."""
        while self._stack:
            key = next(iter(self._stack))
            if key in self._lir:
                return
            del self._stack[key]
            self._ghosts.pop(key, None)
