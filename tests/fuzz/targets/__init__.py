"""All targets, by name."""

from __future__ import annotations

from tests.fuzz.engine import Target
from tests.fuzz.targets import binlog, hive, http, owner, paths, serving, settings, store, tokens, wire

TARGETS: tuple[Target, ...] = tuple(
    target
    for module in (tokens, settings, wire, store, hive, binlog, owner, serving, http, paths)
    for target in module.TARGETS
)
