"""Audits what is pinned for known weaknesses: ``python -m tests.packaging.audit_lock`` (part of ``make check``).

``requirements.lock``: pip-audit asks the Python package index about each package. The Maven artifacts of the local
servers and of Spark's connector: osv-scanner, where this machine has it. Where nobody answers this says "not audited",
which is a failure in CI (``CI`` is set), unless ``NOT_AUDITED=allow``. Pins that were looked at today are not looked at
again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = ROOT / "requirements.lock"
PINS: Final = sorted((ROOT / "freshet/local").glob("*.pins"))
SEEN: Final = ROOT / ".venv" / ".freshet-audited"
PIP_AUDIT: Final = "pip-audit==2.10.1"
TIMEOUT_S: Final = 180
_ALLOWED: Final = "NOT_AUDITED"


class Outcome(NamedTuple):
    """``weak``: package, version and the ids of what is known. ``unknown``: packages that nobody could tell of."""

    audited: int
    weak: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def outcome_of(report: str) -> Outcome:
    """What a report of pip-audit in JSON says; all is unknown if it is none."""
    try:
        found: list[dict[str, Any]] = list(json.loads(report)["dependencies"])
    except (ValueError, KeyError, TypeError):
        return Outcome(0, (), ("all packages",))
    weak = [
        f"{each['name']} {each.get('version', '')}: {', '.join(one['id'] for one in each['vulns'])}"
        for each in found
        if each.get("vulns")
    ]
    unknown = [each["name"] for each in found if "skip_reason" in each]
    return Outcome(len(found) - len(unknown), tuple(weak), tuple(unknown) if found else ("all packages",))


def outcome_of_scan(report: str, pins: Sequence[str]) -> Outcome:
    """What a report of osv-scanner in JSON says of Maven coordinates; all are unknown if it is none."""
    try:
        found = [each for result in json.loads(report)["results"] for each in result["packages"]]
        weak = [
            f"{each['package']['name']} {each['package']['version']}: "
            + ", ".join(one["id"] for one in each["vulnerabilities"])
            for each in found
            if each.get("vulnerabilities")
        ]
    except (ValueError, KeyError, TypeError):
        return Outcome(0, (), tuple(pins))
    return Outcome(len(pins), tuple(weak))


def coordinates() -> list[str]:
    """Group, artifact and version of each pinned Maven artifact."""
    lines = (line for each in PINS for line in each.read_text().splitlines() if not line.startswith("#"))
    return sorted({":".join(line.partition(" ")[0].split(":")[:3]) for line in lines if line})


def verdict(what: str, outcome: Outcome, environment: Mapping[str, str]) -> tuple[list[str], bool]:
    """The lines to print of what was audited, and whether it is a failure."""
    lines = [f"{what}: weak: {each}" for each in outcome.weak]
    if outcome.unknown:
        told = ", ".join(outcome.unknown[:5]) + (", …" if len(outcome.unknown) > 5 else "")
        lines.append(f"{what}: not audited: nobody here tells anything of {len(outcome.unknown)} ({told})")
    if not lines:
        lines = [f"{what}: audited: nothing known of {outcome.audited}"]
    fails_unknown = bool(environment.get("CI")) and environment.get(_ALLOWED) != "allow"
    if outcome.unknown and fails_unknown:
        lines.append(f"hint: let this machine reach who knows (pip-audit, osv-scanner), or set {_ALLOWED}=allow")
    return lines, bool(outcome.weak) or (bool(outcome.unknown) and fails_unknown)


def report() -> str:
    """pip-audit's, from the registry that uv uses."""
    command = [
        *(str(ROOT / ".venv/bin/uv"), "tool", "run", "--quiet", "--from", PIP_AUDIT, "pip-audit", "--format", "json"),
        *("--requirement", str(LOCK), "--disable-pip", "--require-hashes", "--progress-spinner", "off"),
    ]
    return _output(command)


def scan(pins: Sequence[str]) -> str:
    """osv-scanner's report of Maven coordinates, which it is given as Gradle writes them; "" where it is missing."""
    if shutil.which("osv-scanner") is None:
        return ""
    with tempfile.TemporaryDirectory() as place:
        written = Path(place) / "gradle.lockfile"
        written.write_text("".join(f"{each}=runtimeClasspath\n" for each in pins))
        return _output(["osv-scanner", "scan", "--format", "json", "--lockfile", str(written)])


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def main() -> int:
    """The exit code."""
    pinned = b"".join(each.read_bytes() for each in (LOCK, *PINS))
    mark = f"{datetime.now(UTC):%Y-%m-%d} {hashlib.sha256(pinned).hexdigest()}"
    if SEEN.exists() and SEEN.read_text() == mark and not os.environ.get("CI"):
        return 0
    maven = coordinates()
    found = {"requirements.lock": outcome_of(report()), "Maven pins": outcome_of_scan(scan(maven), maven)}
    verdicts = [verdict(what, outcome, os.environ) for what, outcome in found.items()]
    print("\n".join(line for lines, _ in verdicts for line in lines))
    fails = any(is_failure for _, is_failure in verdicts)
    if not fails:
        SEEN.write_text(mark)
    return int(fails)


if __name__ == "__main__":
    sys.exit(main())
