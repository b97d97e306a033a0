"""The loop of a change log: each event of the stream becomes a line or a record, once, however the process ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from time import monotonic
from typing import Final, Protocol, TypedDict

from serving.changelog.files import MARKS
from serving.client import FreshetClient, StreamEvent

HEARTBEAT_MS: Final = 500
GIVE_UP_S: Final = 60.0
"""Without an answer of a front, where somebody waits for the end."""
QUIET_S: Final = 60.0
"""Where nothing changes a watermark is logged so often: the topic must go back to the last checkpoint."""


class Log(Protocol):
    """Where a log is kept. ``checkpoint``: behind the last event that was appended; empty: there is none."""

    checkpoint: str

    def append(self, event: StreamEvent) -> None:
        """Adds an event, which has a checkpoint."""

    def sync(self) -> None:
        """What was appended outlives a crash from now on."""


class Included(TypedDict, total=False):
    """What a log tells besides, as `serving.client.streaming.stream_request` has it."""

    include_before: bool
    include_keyless: bool


def write_log(
    client: FreshetClient,
    keyspace: str,
    log: Log,
    begin: str,
    *,
    tables: Sequence[str] = (),
    once: bool = False,
    include_before: bool = False,
    include_keyless: bool = False,
    clock: Callable[[], float] = monotonic,
) -> None:
    """Writes the changes of ``tables`` (none: all) into ``log``, with their rows. ``include_…``: as of a stream.

    It goes on where the log ends; an empty one begins at ``begin``, as a stream does. ``once``: until all is there that
    Kafka has now, or no front answers for `GIVE_UP_S`; else for ever. It may be killed anywhere, and run again. Raises
    `ClientError`, and what the log raises.
    """
    events = client.stream(
        keyspace,
        log.checkpoint or begin,
        tables=tables,
        include_rows=True,
        include_before=include_before,
        include_keyless=include_keyless,
        until="now" if once else "",
        heartbeat_ms=HEARTBEAT_MS,
        give_up_s=GIVE_UP_S if once else None,
    )
    has_more, logged_at = not log.checkpoint, clock()
    with closing(events):  # type: ignore[type-var]  # a generator
        for event in events:
            is_mark = event.kind in MARKS
            if event.kind == "watermark" and not has_more and clock() - logged_at < QUIET_S:
                continue  # it says nothing that the last one does not
            log.append(event)
            has_more = not is_mark
            if is_mark:
                log.sync()
                logged_at = clock()
