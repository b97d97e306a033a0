"""All targets, by name."""

from __future__ import annotations

from tests.fuzz.engine import Target
from tests.fuzz.targets import hive, store, tokens, wire

TARGETS: tuple[Target, ...] = tuple(target for module in (tokens, wire, store, hive) for target in module.TARGETS)
