"""The threat model: each row names a test that exists."""

from __future__ import annotations

import re

from tests.docs.naming import ROOT
from tests.docs.test_docs import names_of_tests, text_of

PAGE = ROOT / "docs/operating/security.md"


def test_each_row_of_the_threat_model_has_its_test() -> None:
    """A defence that nothing checks is a hope."""
    table = text_of(PAGE).split("## What could go wrong, and what stops it")[1]
    rows = [row for row in table.splitlines() if row.startswith("|")][2:]
    assert len(rows) >= 15
    named = [re.findall(r"`(test_\w+)`", row.rpartition("| ")[2]) for row in rows]
    assert [row for row, tests in zip(rows, named, strict=True) if not tests] == []
    assert {test for tests in named for test in tests} - names_of_tests() == set()
