"""GTID text is read as Vitess v0.24.0 reads it, and printed canonically with merged intervals."""

from __future__ import annotations

import pytest

from tests.conformance.samples import Row, is_tagged, merged_mysql, row_id, rows
from tokens import NO_POSITION, Position, TokenError

ROWS = rows("gtid_parse")
SETS = [row for row in ROWS if row["kind"] != "gtid"]
SINGLE_GTIDS = [row for row in ROWS if row["kind"] == "gtid"]


@pytest.mark.parametrize("row", SINGLE_GTIDS, ids=row_id)
def test_a_single_gtid_is_accepted_iff_vitess_accepts_it(row: Row) -> None:
    """A first GTID needs a flavor and, unlike in Vitess, a positive number."""
    canonical = row["new"].get("canon", "")
    number = canonical.rpartition(":")[2] if canonical.startswith("MySQL56/") else "1"
    if row["new"]["ok"] and int(number) > 0:
        assert str(NO_POSITION.append(row["s"])) == canonical
    else:
        with pytest.raises(TokenError):
            NO_POSITION.append(row["s"])


@pytest.mark.parametrize("row", SETS, ids=row_id)
def test_text_is_accepted_iff_vitess_accepts_it(row: Row) -> None:
    """Exactly the texts that Vitess decodes are positions, plus sets with tags."""
    answer = row["new"]
    if answer["ok"]:
        parsed = Position.parse(row["s"])
        assert str(parsed) == merged_mysql(answer["canon"])
        assert parsed == Position.parse(answer["canon"])
        assert bool(parsed) is not answer["nil"]
    elif is_tagged(row["s"]):
        assert Position.parse(row["s"]).flavor == "MySQL56"
    else:
        with pytest.raises(TokenError):
            Position.parse(row["s"])


@pytest.mark.parametrize("row", [row for row in ROWS if "dflt_mysql" in row["new"]], ids=row_id)
@pytest.mark.parametrize(("key", "flavor"), [("dflt_mysql", "MySQL56"), ("dflt_maria", "MariaDB")])
def test_a_bare_set_is_read_in_the_default_flavor(row: Row, key: str, flavor: str) -> None:
    """A text without a flavor is read as the default one; a flavor in the text wins."""
    canonical = row["new"][key]
    if canonical is not None:
        assert str(Position.parse(row["s"], flavor)) == merged_mysql(canonical)
    elif not (is_tagged(row["s"]) and (flavor == "MySQL56" or "/" in row["s"])):
        with pytest.raises(TokenError):
            Position.parse(row["s"], default_flavor=flavor)
