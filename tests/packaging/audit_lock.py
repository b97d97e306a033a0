"""Audits `requirements.lock` for known weaknesses: ``python -m tests.packaging.audit_lock`` (part of ``make check``).

pip-audit asks the Python package index about each package. Where it doesn't get an answer this says "not audited",
which is a failure in CI (``CI`` is set), unless ``NOT_AUDITED=allow``. A lock that was looked at today is not
looked at again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
LOCK: Final = ROOT / "requirements.lock"
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


def verdict(outcome: Outcome, environment: Mapping[str, str]) -> tuple[list[str], bool]:
    """The lines to print, and whether it is a failure."""
    lines = [f"weak: {each}" for each in outcome.weak]
    if outcome.unknown:
        told = ", ".join(outcome.unknown[:5]) + (", …" if len(outcome.unknown) > 5 else "")
        lines.append(f"not audited: the package index tells nothing of {len(outcome.unknown)} of the lock ({told})")
    if not lines:
        lines = [f"audited: nothing known of {outcome.audited} packages"]
    fails_unknown = bool(environment.get("CI")) and environment.get(_ALLOWED) != "allow"
    if outcome.unknown and fails_unknown:
        lines.append(f"hint: let this machine reach the package index, or set {_ALLOWED}=allow")
    return lines, bool(outcome.weak) or (bool(outcome.unknown) and fails_unknown)


def report() -> str:
    """pip-audit's, from the registry that uv uses."""
    command = [
        *(str(ROOT / ".venv/bin/uv"), "tool", "run", "--quiet", "--from", PIP_AUDIT, "pip-audit", "--format", "json"),
        *("--requirement", str(LOCK), "--disable-pip", "--require-hashes", "--progress-spinner", "off"),
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def main() -> int:
    """The exit code."""
    mark = f"{datetime.now(UTC):%Y-%m-%d} {hashlib.sha256(LOCK.read_bytes()).hexdigest()}"
    if SEEN.exists() and SEEN.read_text() == mark and not os.environ.get("CI"):
        return 0
    lines, fails = verdict(outcome_of(report()), os.environ)
    print("\n".join(lines))
    if not fails:
        SEEN.write_text(mark)
    return int(fails)


if __name__ == "__main__":
    sys.exit(main())
