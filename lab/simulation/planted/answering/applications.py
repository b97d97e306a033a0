"""Planted bugs in `serving.client.cache` and `serving.keeping`: rows that applications keep, and that they give."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, always, installation, leave_out, never
from serving import keeping
from serving.client.cache import entries
from serving.client.cache.reading import Entries, RowCache

BUGS: Final = (
    installation(
        "kept_value_is_not_compared",
        "the application's cache gives what it has, whatever the session has seen",
        always(Entries.may_be_used, "covers(parsed(any_entry.proven), any_demanded)"),
    ),
    installation(
        "told_is_not_compared",
        "the application's cache gives what nothing has voided, however far its invalidators have come",
        never(Entries.may_be_used, "not covers(known, any_demanded)"),
    ),
    installation(
        "kept_value_moves_no_session",
        "a session that is given a kept row does not remember it",
        leave_out(RowCache.get_row, "session.adopt(any_seen.entry.token)"),
    ),
    installation(
        "kept_table_is_never_void",
        "a table is emptied, and what the application has kept of it is given on",
        Replace(entries.is_live, "all(...)", "True"),
    ),
    installation(
        "kept_value_survives_its_event",
        "a row changes, and the invalidator leaves what is kept of it",
        always(entries.invalidated, "any_entry.generation == any_generation and covers(any_proven, any_token)"),
    ),
    installation(
        "given_row_is_believed",
        "the cache proves that there is a row, and not that it is the one that is given",
        Replace(keeping.keep_row, "any_found != any_given", "False"),
    ),
    installation(
        "given_row_is_of_any_time",
        "a row that is given is compared with what the cache has, without the place that it is of",
        Replace(
            keeping.keep_row,
            "any_demand._replace(consistency='leader')",
            "any_demand._replace(consistency='leader', vector=type(any_demand.vector)())",
        ),
    ),
)
