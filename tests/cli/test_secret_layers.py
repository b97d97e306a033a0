"""Settings come in layers: a secret of a later one replaces the file that an earlier one names, or the other way."""

from __future__ import annotations

from typing import Any

import pytest

from freshet.sections.secrets import without_replaced

FILE, TEXT = {"bearer_token_file": "/run/secrets/token"}, {"bearer_token": "s3cret"}


@pytest.mark.parametrize(
    ("earlier", "later", "left"),
    [
        (FILE, TEXT, {}),
        (TEXT, FILE, {}),
        (FILE, {"bearer_token": ""}, FILE),
        (FILE, {"bearer_token": None}, FILE),
        (TEXT, {"bearer_token_file": ""}, TEXT),
        (FILE, {}, FILE),
    ],
)
def test_an_empty_secret_replaces_none(earlier: dict[str, Any], later: dict[str, Any], left: dict[str, Any]) -> None:
    """A variable that a script has left empty would open a front to all."""
    assert without_replaced(earlier, later) == left
    assert without_replaced({"serve": earlier}, {"serve": later}) == {"serve": left}
