"""The requirements of the location cache: each names tests that exist."""

from __future__ import annotations

import re

from tests.docs.naming import ROOT
from tests.docs.test_docs import names_of_tests, text_of

PAGE = ROOT / "docs/internals/locations.md"


def test_each_requirement_of_locations_has_tests_that_exist() -> None:
    """L1 to L25. Only L17 has nothing to test there, and says why."""
    rows = re.findall(r"^\| (L\d+) \| .* \| (.*) \|$", text_of(PAGE), re.MULTILINE)
    assert [number for number, _ in rows] == [f"L{number}" for number in range(1, 26)]
    named = {number: re.findall(r"`(test_\w+)`", tests) for number, tests in rows}
    assert [number for number, tests in named.items() if not tests] == ["L17"]
    assert {test for tests in named.values() for test in tests} - names_of_tests() == set()
