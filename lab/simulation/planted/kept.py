"""The kept histories that catch planted bugs (`lab.simulation.catches`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.simulation.engine import History

KEPT: Final = Path(__file__).parent / "catches.json"


@dataclass(frozen=True, slots=True)
class Catch:
    """The rule that a history breaks with a planted bug, and its ops."""

    rule: str
    ops: History


def kept_catches() -> dict[str, Catch]:
    """Name of a planted bug → its kept catch."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    return {name: Catch(each["rule"], [tuple(op) for op in each["ops"]]) for name, each in kept.items()}


def keep(catches: Mapping[str, Catch]) -> None:
    """Writes the catches, one line for each, so that two developers' changes can be merged."""
    lines = [
        f"{json.dumps(name)}: {json.dumps({'rule': catch.rule, 'ops': catch.ops})}"
        for name, catch in sorted(catches.items())
    ]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
