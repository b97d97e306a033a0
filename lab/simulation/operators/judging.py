"""Judges what processes show of themselves, and answers by the description that the front gives of itself."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

EXPLAINS: Final = "explanation true"
PER_PROCESS: Final = ("freshet_source_", "freshet_owner_", "freshet_store_rebuilds", "freshet_serve_")
"""Counters that only a restart of the process resets; those of a partition begin anew when it comes back."""
UNKNOWN: Final = {"freshet_source_lag_seconds": -1.0, "freshet_source_backfill_eta_seconds": -1.0}
"""Gauge → the value that says that it is not known yet."""

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
Complain = Callable[[str, str], None]


class ScrapeJudge:
    """Reads expositions in Prometheus' format."""

    def __init__(self, complain: Complain) -> None:
        self._complain = complain
        self._counted: dict[object, Samples] = defaultdict(dict)

    def scraped(self, process: str, life: object, text: str) -> Samples:
        """Judges one scrape, and returns its samples. ``life``: of the process, from a start to its end."""
        found: Samples = {}
        before = self._counted[life]
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                found[key] = sample.value
                if sample.value < 0 and sample.value != UNKNOWN.get(sample.name):
                    self._complain(EXPLAINS, f"{process} shows {sample.name} {sample.labels} as {sample.value}")
                if family.type == "counter" and sample.name.startswith(PER_PROCESS):
                    if sample.value < before.get(key, 0.0):
                        what = f"{sample.name} {sample.labels} fell from {before[key]} to {sample.value}"
                        self._complain(EXPLAINS, f"{process}: {what}")
                    before[key] = sample.value
        self._check_offsets(process, found)
        return found

    def _check_offsets(self, process: str, found: Samples) -> None:
        for (name, labels), value in found.items():
            if name == "freshet_consumer_committed_offset" and value > found["freshet_consumer_offset", labels]:
                self._complain(EXPLAINS, f"{process} shows {value} of {labels} as durable, which is not folded")


def check_described(
    description: Mapping[str, Any], template: str, method: str, status: int, body: str, complain: Complain
) -> None:
    """Checks that the front's description has an answer: its status, its fields, and the code of an error."""
    operation = description["paths"].get(template, {}).get(method.lower())
    if operation is None:
        complain(EXPLAINS, f"{method} {template} is not described")
        return
    meant = operation["responses"].get(str(status))
    if meant is None:
        complain(EXPLAINS, f"{method} {template} answers {status}, which is not described")
        return
    if "application/json" not in meant.get("content", {}) and status in (200, 304):
        return
    answer = json.loads(body)
    if status >= 400 and "code" in answer:
        if f"`{answer['code']}`" not in meant["description"]:
            complain(EXPLAINS, f"{method} {template} answers {status} {answer['code']}, which is not described")
        return
    name = meant["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema = description["components"]["schemas"][name]
    missing, more = set(schema.get("required", ())) - set(answer), set(answer) - set(schema["properties"])
    if missing or more:
        complain(EXPLAINS, f"{method} {template} answers without {missing}, and with {more}")
