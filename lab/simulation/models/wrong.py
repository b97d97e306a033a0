"""Sources that answer wrongly. They change the models, not the product, so they are no planted bugs.

They show that the checkers find out a source that breaks what is asked of it (docs/concepts/guarantees.md): its
position belongs to its snapshot, and nobody gets what another one has not committed.
"""

from __future__ import annotations

from typing import Final

from lab.simulation.catalog.run_state import CatalogRunState
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
        "list_after_fetch",
        "a read of the metastore takes list and position from the primary, and the image from a replica",
        Replace(
            CatalogRunState.read_metastore,
            "text = store.list_of(table, own) if any_managed else any_none",
            "position = Position.parse(position_of(self.store.end))\n"
            "table = self.store.by_id[table.table_id]\n"
            'text = self.store.list_of(table, own) if table.kind == "transactional" else ""',
        ),
    ),
    catalog(
        "own_write_for_everybody",
        "a reader gets the staged write of another open transaction",
        always(CatalogRunState.read_metastore, "any_table.staged is not None and any_table.staged[0] == any_own"),
    ),
)
