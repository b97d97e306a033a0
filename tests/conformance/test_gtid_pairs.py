"""Equality and containment of positions agree with Vitess on normalized sets; `order` follows from them."""

from __future__ import annotations

import pytest

from tests.conformance.samples import Row, merged_mysql, row_id, rows
from tokens import Order, Position, TokenError

ROWS = rows("gtid_pairs")


@pytest.mark.parametrize("row", [row for row in ROWS if "eq_ab" not in row["new"]], ids=row_id)
def test_malformed_sides_are_refused(row: Row) -> None:
    """A malformed text that Vitess refuses is refused; the other text of its pair is read."""
    for side in "ab":
        if row["new"][f"{side}_ok"]:
            assert str(Position.parse(row[side])) == merged_mysql(row["new"][f"{side}_canon"])
        else:
            with pytest.raises(TokenError):
                Position.parse(row[side])


@pytest.mark.parametrize("row", [row for row in ROWS if "eq_ab" in row["new"]], ids=row_id)
def test_containment_is_set_inclusion(row: Row) -> None:
    """Equality, containment and order are those of the normalized sets; FilePos needs equal base names."""
    answer = row["new"]
    a, b = Position.parse(row["a"]), Position.parse(row["b"])
    equal = answer.get("n_eq", answer["eq_ab"])
    above = answer.get("n_ge_ab", answer["ge_ab"])
    below = answer.get("n_ge_ba", answer["ge_ba"])
    if "a_norm" in answer:
        assert (str(a), str(b)) == (answer["a_norm"], answer["b_norm"])
    if a.flavor == b.flavor == "FilePos" and a != b:
        above, below = _file_places_compare(str(a), str(b))
    assert (a == b, b == a) == (equal, equal)
    assert (a.contains(b), b.contains(a)) == (above, below)
    assert a.order(b) is b.order(a).reversed()
    assert a.order(b) is _expected_order(row, equal, above, below)


def _expected_order(row: Row, equal: bool, above: bool, below: bool) -> Order:
    if equal:
        return Order.SAME
    if above == below or not (row["a"] and row["b"]) or _same_sequence_of_two_servers(row):
        return Order.UNKNOWN
    return Order.NEWER if above else Order.OLDER


def _same_sequence_of_two_servers(row: Row) -> bool:
    texts = [row["new"][f"{side}_canon"] for side in "ab"]
    if not all(text.startswith("MariaDB/") for text in texts):
        return False
    gtids = {gtid for text in texts for gtid in text.removeprefix("MariaDB/").split(",") if gtid}
    places = {(domain, sequence) for domain, _, sequence in (gtid.split("-") for gtid in gtids)}
    return len(places) < len(gtids)


def _file_places_compare(a: str, b: str) -> tuple[bool, bool]:
    """(a at or past b, b at or past a): by file number, then offset; Vitess compares the names as strings."""
    places = []
    for text in (a, b):
        file, _, offset = text.removeprefix("FilePos/").rpartition(":")
        base, _, number = file.rpartition(".")
        places.append((base, int(number), int(offset)) if number.isdigit() else (file, -1, int(offset)))
    if places[0][0] != places[1][0]:
        return False, False
    return places[0] >= places[1], places[1] >= places[0]
