"""Planted bugs in reads of ranges, between the client's method and the source's statement."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Begin, Replace, installation, leave_out
from serving.client.session import SessionState
from serving.http import query, routes
from stream.sources.mariadb import by_range

BUGS: Final = (
    installation(
        "session_forgets_ranges",
        "a session does not keep the token of a range that it has read",
        leave_out(SessionState._plan_range, "self._answered(found.token, demanded)"),
    ),
    installation(
        "page_begins_with_the_row_before",
        "a page from the source repeats the last row of the page before",
        Replace(by_range._where, "'<' if any_wanted.descending else '>'", "'<=' if wanted.descending else '>='"),
    ),
    installation(
        "descending_range_ascends",
        "the source gives the first rows for the last ones",
        Replace(by_range.select_range, "' DESC' if any_wanted.descending else ''", "''"),
    ),
    installation(
        "count_knows_no_limit",
        "the source counts all rows where some were asked for",
        Replace(by_range._count, "not any_wanted.count_max", "True"),
    ),
    installation(
        "bound_of_a_range_is_dropped",
        "a range may be older than the request allows",
        Begin(routes.find_rows, "parameters.max_staleness_ms = msgspec.UNSET"),
    ),
    installation(
        "leading_column_is_dropped",
        "a request that names one row gets the whole table",
        Replace(query.requested_range, "any_parameters.columns", "{}"),
    ),
)
"""All planted bugs."""
