"""Pure values: positions, event tokens, vectors, write-id lists, and the comparator. No I/O, no clock."""

from . import logs, mariadb, mysql  # noqa: F401  # each registers its flavor with Position
from .decision import Decision, Demand, Freshness, Tag, Verdict, decide
from .errors import FreshetError, TokenError
from .event import EventToken, Origin, order, vitess_fresher
from .position import NO_POSITION, Order, Position
from .vector import Component, Vector
from .writeids import ValidWriteIdList, hive_compare

__all__ = [
    "NO_POSITION",
    "Component",
    "Decision",
    "Demand",
    "EventToken",
    "FreshetError",
    "Freshness",
    "Order",
    "Origin",
    "Position",
    "Tag",
    "TokenError",
    "ValidWriteIdList",
    "Vector",
    "Verdict",
    "decide",
    "hive_compare",
    "order",
    "vitess_fresher",
]
