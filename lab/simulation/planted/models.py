"""Sources that answer wrongly. They change the models, not the product, so they are no planted bugs.

They show that the checkers find out a source that breaks what is asked of it (docs/internals/sources.md): its position
belongs to its snapshot, and nobody gets what another one has not committed.
"""

from __future__ import annotations

from typing import Final

from lab.simulation.catalog.reading import CatalogReadOps
from lab.simulation.planted.planting import Replace, always, catalog, rows
from lab.simulation.rows.asking import SourceRead
from lab.simulation.rows.source import SimulatedSource

WRONG_SOURCES: Final = (
    rows(
        "binlog_end_as_token",
        "a read of the source uses the binlog's end as the position of the row",
        Replace(SimulatedSource.read, "any_history.positions[index]", "any_history.positions[-1]"),
    ),
    rows(
        "token_after_fetch",
        "a read of the source determines the position after the row",
        Replace(SourceRead.rows, "any_snapshot.position, any_snapshot.position", "hi, hi"),
    ),
    catalog(
        "tag_after_fetch",
        "a fill is stamped with the list and position at the time of its offer",
        Replace(
            CatalogReadOps._deliver,
            "any_accepted, any_why = owner_tables.fill_table(...)",
            "table = self.store.by_id[fill.table_id]\n"
            'fill.write_ids = self.store.list_of(table) if fill.write_ids else ""\n'
            "fill.lo = fill.hi = position_of(self.store.end)\n"
            "any_accepted, any_why = owner_tables.fill_table(owned.partition, fill)",
        ),
    ),
    catalog(
        "own_write_for_everybody",
        "a reader gets the staged write of another open transaction",
        always(CatalogReadOps._read_metastore, "any_table.staged is not None and any_table.staged[0] == any_own"),
    ),
)
