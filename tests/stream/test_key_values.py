"""A reader's text for a key column: its canonical value, and whether no other spelling finds the same row."""

from __future__ import annotations

import ipaddress

import pytest

from stream.wire.events import Column
from stream.wire.values import UndecodableValue, inet_text, request_key_value

UUID = "123e4567-e89b-12d3-a456-426614174000"


@pytest.mark.parametrize(
    ("kind", "text", "value", "exact"),
    [
        ("uuid", UUID, UUID, True),
        ("uuid", UUID.upper(), UUID, True),
        ("uuid", UUID.replace("-", ""), UUID.replace("-", ""), False),
        ("uuid", f"{UUID} ", f"{UUID} ", False),
        ("uuid", f"{UUID}0", f"{UUID}0", False),
        ("date", "2024-01-01", "2024-01-01", True),
        ("date", "2024-01-01 00:00:00", "2024-01-01 00:00:00", False),
        ("date", "2024-1-1", "2024-1-1", False),
        ("date", "20240101", "20240101", False),
        ("date", "24-01-01", "24-01-01", False),
        ("int", "7", 7, True),
        ("int", "007", 7, True),
        ("int", "+7", 7, True),
        ("int", "-07", -7, True),
        ("bit", "010", 10, True),
        ("year", "2024", 2024, True),
        ("float", "7", 7.0, False),
        ("double", "1.5", 1.5, False),
        ("inet", "::FFFF:1.2.3.4", "::ffff:102:304", False),
        ("binary", "a", {"base64": "YQ=="}, True),
        ("text", "A", "A", True),
    ],
)
def test_a_key_value_has_its_canonical_form_and_is_exact_only_if_no_other_text_finds_the_row(
    kind: str, text: str, value: object, exact: bool
) -> None:
    """Absence is cached only under a value whose canonical form is the row's own."""
    assert request_key_value(Column("k", kind, True), text) == (value, exact)


def test_an_address_has_one_text_whoever_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Since Python 3.13 it writes a mapped address as ``::ffff:1.2.3.4``, and events and reads may be of two."""
    monkeypatch.setattr(ipaddress.IPv6Address, "__str__", lambda self: f"of Python {int(self)}")
    for address in ("::ffff:1.2.3.4", "::ffff:0.0.0.5"):
        packed = ipaddress.IPv6Address(address).packed
        expected = {"::ffff:1.2.3.4": "::ffff:102:304", "::ffff:0.0.0.5": "::ffff:0:5"}[address]
        assert (inet_text(packed), request_key_value(Column("k", "inet", True), address)[0]) == (expected, expected)


@pytest.mark.parametrize("kind", ["int", "bit", "year", "text", "binary", "decimal", "float", "double", "inet"])
def test_a_column_that_is_not_exact_has_no_exact_value(kind: str) -> None:
    """The description of a column can only take exactness away."""
    text = "::1" if kind == "inet" else "7"
    assert request_key_value(Column("k", kind, False), text)[1] is False


@pytest.mark.parametrize(("kind", "text"), [("int", "x"), ("year", ""), ("double", "1,5"), ("inet", "1.2.3")])
def test_a_text_of_another_kind_is_refused_and_names_the_column(kind: str, text: str) -> None:
    """A text that is no value of the column's kind is an error, not a key of another row."""
    with pytest.raises(UndecodableValue, match=rf"valid {kind} value for k"):
        request_key_value(Column("k", kind, True), text)
