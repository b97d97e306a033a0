"""The audit of the lock: what it says, and when it fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.packaging.audit_lock import coordinates, outcome_of, outcome_of_scan, verdict

GOOD = {"name": "a", "version": "1", "vulns": []}
WEAK = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1"}, {"id": "CVE-2"}]}
SKIPPED = {"name": "c", "skip_reason": "Dependency not found on PyPI and could not be audited: c (3)"}


@pytest.mark.parametrize(
    ("dependencies", "said", "fails", "fails_in_ci"),
    [
        ([GOOD], "the lock: audited: nothing known of 1", False, False),
        ([GOOD, WEAK], "the lock: weak: b 2: PYSEC-1, CVE-2", True, True),
        ([GOOD, SKIPPED], "the lock: not audited", False, True),
        ([SKIPPED], "the lock: not audited", False, True),
        ([], "the lock: not audited", False, True),
    ],
)
def test_what_is_not_audited_is_said_and_fails_in_ci(
    dependencies: list[dict[str, Any]], said: str, fails: bool, fails_in_ci: bool
) -> None:
    """pip-audit's exit code is 0 where nobody told it anything; that must not pass for an audit."""
    outcome = outcome_of(json.dumps({"dependencies": dependencies}))
    lines, is_failure = verdict("the lock", outcome, {})
    assert lines[0].startswith(said)
    assert is_failure is fails
    assert verdict("the lock", outcome, {"CI": "1"})[1] is fails_in_ci
    assert verdict("the lock", outcome, {"CI": "1", "NOT_AUDITED": "allow"})[1] is fails


@pytest.mark.parametrize("report", ["", "no json", "[]", "{}", '{"dependencies": null}'])
def test_no_report_is_no_audit(report: str) -> None:
    """A tool that could not be fetched, or that crashed, audited nothing."""
    assert verdict("the lock", outcome_of(report), {"CI": "true"})[1]


def test_every_maven_pin_is_asked_for() -> None:
    """Of each artifact of every pin file, whatever its packaging: group, artifact and version."""
    found = coordinates()
    assert len(found) > 50
    assert {"org.apache.kafka:kafka-clients:4.1.1", "org.apache.derby:derby:10.14.2.0"} <= set(found)
    assert {each.count(":") for each in found} == {2}


def test_maven_pins_are_audited_or_it_is_said() -> None:
    """By what osv-scanner writes: a weakness fails, nothing found is an audit, and no report is none."""
    pins = ["g:a:1", "g:b:2"]
    package = {"package": {"name": "g:a", "version": "1", "ecosystem": "Maven"}, "vulnerabilities": [{"id": "GHSA-1"}]}
    weak = outcome_of_scan(json.dumps({"results": [{"packages": [package]}]}), pins)
    assert verdict("Maven pins", weak, {}) == (["Maven pins: weak: g:a 1: GHSA-1"], True)
    assert verdict("Maven pins", outcome_of_scan('{"results": []}', pins), {"CI": "1"})[1] is False
    for report in ("", "no json", "[]", '{"results": null}'):
        lines, is_failure = verdict("Maven pins", outcome_of_scan(report, pins), {"CI": "1"})
        assert lines[0] == "Maven pins: not audited: nobody here tells anything of 2 (g:a:1, g:b:2)"
        assert is_failure
