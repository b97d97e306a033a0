"""What a run of the demo found: shown live as a table, and as a summary at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table


@dataclass(slots=True)
class Findings:
    """Everything measured and judged. Times in seconds."""

    started_s: float = 0.0
    page: str = ""
    """Where the front's page is while the demo runs."""
    ready_s: float = 0.0
    traffic_s: float = 0.0
    transactions: int = 0
    rolled_back: int = 0
    row_changes: int = 0
    catalog_commits: int = 0
    events: int = 0
    lag_s: float = 0.0
    lag_max_s: float = 0.0
    answers: Counter[str] = field(default_factory=Counter)
    by_default: Counter[str] = field(default_factory=Counter)
    """As ``answers``, of the reads that leave the wait to the front."""
    misses: Counter[str] = field(default_factory=Counter)
    """Table and reason → rows that the source had to answer."""
    catalog_answers: Counter[str] = field(default_factory=Counter)
    took_ms: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Who answered → milliseconds that half of the reads of rows took at most, and that 99 % did; with their wait."""
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    recovered: tuple[int, int] = (0, 0)
    """(keys that the cache serves after the traffic and one read, keys tried)."""
    rebuilds: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """No wrong answer, no error, everything recovered, every rebuild equal."""
        return (
            not self.wrong
            and not self.errors
            and bool(self.answers)
            and bool(self.rebuilds)
            and all(rebuild["equal"] for rebuild in self.rebuilds.values())
            and self.recovered[0] == self.recovered[1] > 0
        )

    def note_times(self, took_s: Mapping[str, Collection[float]]) -> None:
        """Takes over how long reads took, by who answered."""
        ordered = {who: sorted(each) for who, each in took_s.items()}
        self.took_ms = {
            who: (1000 * each[len(each) // 2], 1000 * each[len(each) * 99 // 100])
            for who, each in ordered.items()
            if each
        }

    def as_json(self) -> dict[str, Any]:
        """The findings as JSON values."""
        return {
            "passed": self.passed,
            "ready_s": round(self.ready_s, 1),
            "traffic_s": round(self.traffic_s, 1),
            "transactions": self.transactions,
            "rolled_back": self.rolled_back,
            "row_changes": self.row_changes,
            "catalog_commits": self.catalog_commits,
            "events": self.events,
            "events_per_s": round(self.events_per_s),
            "lag_max_s": round(self.lag_max_s, 2),
            "answers": dict(sorted(self.answers.items())),
            "by_default": dict(sorted(self.by_default.items())),
            "misses": dict(sorted(self.misses.items())),
            "catalog_answers": dict(sorted(self.catalog_answers.items())),
            "took_ms": {who: [round(each, 2) for each in took] for who, took in sorted(self.took_ms.items())},
            "refused": dict(sorted(self.refused.items())),
            "wrong": self.wrong,
            "errors": self.errors,
            "recovered": list(self.recovered),
            "rebuilds": self.rebuilds,
        }

    @property
    def events_per_s(self) -> float:
        """Events published per second of traffic."""
        return self.events / self.traffic_s if self.traffic_s else 0.0

    def line(self) -> str:
        """The findings so far in one line, where stdout is not a terminal."""
        return (
            f"{self.traffic_s:5.1f} s  {self.transactions} transactions, {self.events} events "
            f"({self.events_per_s:.0f}/s), lag {self.lag_s:.1f} s, rows {_hits(self.answers)}, "
            f"catalog {_hits(self.catalog_answers)}"
        )

    def table(self) -> Table:
        """The findings so far as a table, for a terminal."""
        table = Table(title="Freshet demo (Ctrl-C ends it)", show_header=False, title_justify="left")
        rows = {
            "page": self.page,
            "running": f"{self.traffic_s:.0f} s (ready after {self.ready_s:.1f} s)",
            "transactions": f"{self.transactions} committed, {self.rolled_back} rolled back",
            "events": f"{self.events} ({self.events_per_s:.0f}/s), lag {self.lag_s:.1f} s of source time",
            "row answers": _shown(self.answers),
            "they took": "; ".join(self._times()) or "nothing yet",
            "catalog answers": _shown(self.catalog_answers),
            "refused": _shown(self.refused),
        }
        for name, text in rows.items():
            table.add_row(name, text)
        return table

    def summary(self) -> str:
        """The findings as lines of text."""
        lines = [
            "",
            f"ready after         {self.ready_s:.1f} s",
            f"traffic             {self.traffic_s:.1f} s: {self.transactions} transactions ({self.rolled_back} rolled "
            f"back), {self.row_changes} row changes, {self.catalog_commits} catalog commits",
            f"events              {self.events}, {self.events_per_s:.0f}/s; lag at most {self.lag_max_s:.2f} s of "
            "source time",
            f"row answers         {_shown(self.answers)}",
            f"  from the cache    {_hits(self.answers)}",
            f"  with default wait {_hits(self.by_default)}",
            *(f"  from the source   {count:>5} {miss}" for miss, count in self.misses.most_common()),
            *(f"  took              {times}" for times in self._times()),
            f"catalog answers     {_shown(self.catalog_answers)}",
            f"  from the cache    {_hits(self.catalog_answers)}",
            f"refused             {_shown(self.refused)}",
            f"recovered           {self.recovered[0]} of {self.recovered[1]} keys, after the traffic and one read",
        ]
        lines += [f"rebuild {name:<12}{_rebuilt(rebuild)}" for name, rebuild in self.rebuilds.items()]
        lines += [f"wrong answers       {len(self.wrong)}", *(f"  {wrong}" for wrong in self.wrong[:10])]
        lines += [f"error               {error}" for error in self.errors[:10]]
        lines += self.proven() if self.passed else ["FAILED"]
        return "\n".join(lines)

    def _times(self) -> list[str]:
        return [
            f"from the {who} {half:.1f} ms (half of them), {most:.1f} ms (99 %)"
            for who, (half, most) in sorted(self.took_ms.items())
        ]

    def proven(self) -> list[str]:
        """What a run that has passed shows, in plain words."""
        answers = self.answers.total() + self.catalog_answers.total()
        served, tried = self.recovered
        return [
            "",
            f"What this run has proven, while {self.transactions:,} transactions changed the rows:",
            f"- Each of {answers:,} answers was compared with the true history: none was older than was demanded.",
            f"- {_hits(self.answers)} reads of rows did not touch the database.",
            f"- Afterwards {served} of {tried} keys came from the cache, with the last value.",
            "- Spark folded the topics anew, and got the same state, byte for byte.",
            "",
            f"The page was at {self.page} meanwhile. `freshet up --local` gives you one that stays.",
            "PASSED: no answer was wrong, and the rebuild agrees",
        ]


def _rebuilt(rebuild: dict[str, Any]) -> str:
    agrees = "equal to the live state, byte for byte" if rebuild["equal"] else "DIFFERS from the live state"
    return f"{rebuild['events']} events in {rebuild['seconds']:.1f} s ({rebuild['events_per_s']}/s), {agrees}"


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def _hits(counts: Counter[str]) -> str:
    total = sum(counts.values())
    cached = sum(count for name, count in counts.items() if name.startswith("cache/"))
    return f"{100 * cached / total:.1f} % of {total}" if total else "none yet"
