"""Pure values: positions, event tokens, vectors, write-id lists, and the comparator. No I/O, no clock."""

from tokens import logs, mariadb, mysql  # noqa: F401  # each registers its flavor with Position
from tokens.decision import Decision, Demand, Freshness, Tag, Verdict, decide
from tokens.errors import FreshetError, TokenError
from tokens.event import EventToken, Origin, order, vitess_fresher
from tokens.position import NO_POSITION, Order, Position
from tokens.vector import Component, Vector
from tokens.writeids import ValidWriteIdList, hive_compare

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
