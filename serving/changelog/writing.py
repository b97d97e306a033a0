"""The loop of a change log: each event of the stream becomes a line, once, in whatever way the process ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from time import monotonic
from typing import Final

from serving.changelog.files import MARKS, LogFiles
from serving.client import FreshetClient

HEARTBEAT_MS: Final = 500
GIVE_UP_S: Final = 60.0
"""Without an answer of a front, where somebody waits for the end."""
QUIET_S: Final = 60.0
"""Where nothing changes a watermark is logged so often: the topic must go back to the last checkpoint."""


def write_log(
    client: FreshetClient,
    keyspace: str,
    files: LogFiles,
    begin: str,
    *,
    tables: Sequence[str] = (),
    once: bool = False,
    clock: Callable[[], float] = monotonic,
) -> None:
    """Writes the changes of ``tables`` (none: all) into ``files``, with their rows.

    It goes on where the log ends; an empty one begins at ``begin``, as a stream does. ``once``: until all is there that
    Kafka has now, or no front answers for `GIVE_UP_S`; else for ever. It may be killed anywhere, and run again. Raises
    `ClientError`, `OSError`.
    """
    events = client.stream(
        keyspace,
        files.checkpoint or begin,
        tables=tables,
        include_rows=True,
        until="now" if once else "",
        heartbeat_ms=HEARTBEAT_MS,
        give_up_s=GIVE_UP_S if once else None,
    )
    has_more, logged_at = not files.checkpoint, clock()
    with closing(events):  # type: ignore[type-var]  # a generator
        for event in events:
            is_mark = event.kind in MARKS
            if event.kind == "watermark" and not has_more and clock() - logged_at < QUIET_S:
                continue  # it says nothing that the last one does not
            files.append(event)
            has_more = not is_mark
            if is_mark:
                files.sync()
                logged_at = clock()
