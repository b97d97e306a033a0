"""The audit of the lock: what it says, and when it fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.packaging.audit_lock import outcome_of, verdict

GOOD = {"name": "a", "version": "1", "vulns": []}
WEAK = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1"}, {"id": "CVE-2"}]}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI and could not be audited: c (3)"}


@pytest.mark.parametrize(
    ("dependencies", "said", "fails", "fails_in_ci"),
    [
        ([GOOD], "audited: nothing known of 1 packages", False, False),
        ([GOOD, WEAK], "weak: b 2: PYSEC-1, CVE-2", True, True),
        ([GOOD, SKIPPED], "not audited", False, True),
        ([SKIPPED], "not audited", False, True),
        ([], "not audited", False, True),
    ],
)
def test_what_is_not_audited_is_said_and_fails_in_ci(
    dependencies: list[dict[str, Any]], said: str, fails: bool, fails_in_ci: bool
) -> None:
    """pip-audit's exit code is 0 where nobody told it anything; that must not pass for an audit."""
    outcome = outcome_of(json.dumps({"dependencies": dependencies}))
    lines, is_failure = verdict(outcome, {})
    assert lines[0].startswith(said)
    assert is_failure is fails
    assert verdict(outcome, {"CI": "1"})[1] is fails_in_ci
    assert verdict(outcome, {"CI": "1", "NOT_AUDITED": "allow"})[1] is fails


@pytest.mark.parametrize("report", ["", "no json", "[]", "{}", '{"dependencies": null}'])
def test_no_report_is_no_audit(report: str) -> None:
    """A tool that could not be fetched, or that crashed, audited nothing."""
    assert verdict(outcome_of(report), {"CI": "true"})[1]
