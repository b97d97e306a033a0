"""Planted bugs in `serving.sink`: what a copy in another database becomes."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, Return, installation, leave_out
from serving.sink.applying import is_taken
from serving.sink.running import Sink

BUGS: Final = (
    installation(
        "sink_checkpoint_before_its_rows",
        "a sink commits its checkpoint in a transaction of its own, before the rows",
        Replace(
            Sink._commit,
            "with self._engine.begin() as any_connection:\n    ...",
            "with self._engine.begin() as connection:\n"
            "    self._state = self._states.save(connection, self._state)\n"
            "with self._engine.begin() as connection:\n    self._batch.write(connection)",
        ),
    ),
    installation(
        "sink_passes_over_a_void", "a table that a void names is not read again", Return(Sink._voided, "state")
    ),
    installation(
        "sink_keeps_what_it_has_not_read",
        "rows that are gone stay in the copy when their table is read again",
        leave_out(Sink._write_page, "remove_unread(any_connection, any_table, any_number)"),
    ),
    installation(
        "sink_keeps_the_first_change",
        "a row with a token is not replaced by a newer one",
        Return(is_taken, "not kept"),
    ),
    installation(
        "sink_begins_now",
        "a sink that is started again forgets its checkpoint",
        Replace(Sink._follow, "self._state.checkpoint or 'now'", "'now'"),
    ),
)
