"""``freshet log`` keeps a complete log of a keyspace in files, and is killed anywhere, also between two writes.

A log is judged by its lines alone: read in their order they are a change stream, which keeps a copy as any reader's. So
a line too few, one too many, or a torn one is found out. When Kafka has lost what a log needs to go on, its operator
begins another one in another directory, as the page of the log says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec

from lab.simulation.engine import Outcome
from lab.simulation.installation.following.copies import TELLS_ALL
from lab.simulation.installation.following.looking_back import LookingBack
from lab.simulation.installation.following.readers import EARLY
from lab.simulation.installation.writing import KEYSPACE
from lab.simulation.kernel.fronts import blocking_client
from serving.changelog.errors import ChangeLogError
from serving.changelog.files import Heading, LogFiles
from serving.changelog.writing import Log, write_log
from serving.client.client import FreshetClient
from serving.client.errors import ClientError
from serving.client.streaming import StreamEvent
from tokens.errors import FreshetError

LOGGER: Final = "logger"
FILE_BYTES: Final = 3_000
"""So that a log has several files."""
STARTED_AGAIN: Final = frozenset({"log_failed", "log_taken"})
"""Codes after which a log is started again, as their hints say."""
STEPS_MAX: Final = 6
"""Of the steps of writes that a log's process dies within."""
TORN: Final = (b"", b'{"kind":"transac', b"\xff\xfe\n", b"{}\n")
"""What a crash of the machine may leave behind a log's last line."""


class Logging(LookingBack):
    """The ops of a log in files."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self._logs = 0
        """How many logs were begun."""

    def op_keep_log(self, pause: int) -> None:
        """Somebody begins to keep a log, or goes on with it; or its process is killed."""
        if self.kernel.is_running(LOGGER):
            self.say("the log's process is killed")
            self.kernel.kill(LOGGER)
        else:
            self._start_log()
        self.pause(pause)

    def op_log_dies(self, steps: int, pause: int) -> None:
        """The log's process dies within some steps of writes, and is started again."""
        self.disk.dies_at[LOGGER] = 1 + steps % STEPS_MAX
        self.pause(pause)
        if self._logs and not self.kernel.is_running(LOGGER):
            self._start_log()

    def op_log_torn(self, end: int, pause: int) -> None:
        """The machine of the log crashes: its last lines are not whole on the disk."""
        if not self._logs:
            return
        self.kernel.kill(LOGGER)
        for path in self._files(self._logs)[-1:]:
            with path.open("ab") as file:
                file.write(TORN[end % len(TORN)])
        self._start_log()
        self.pause(pause)

    def _start_log(self) -> None:
        self._logs = self._logs or 1
        self.say(f"log {self._logs} is written")
        self.kernel.spawn(LOGGER, self._keep_log)

    def _keep_log(self) -> None:
        def opened(_client: FreshetClient) -> LogFiles:
            directory, heading = self._directory(self._logs), Heading(KEYSPACE, [])
            return LogFiles(directory, heading, file_bytes_max=FILE_BYTES, clock=lambda: self.kernel.time)

        while self.keep_writing(opened):
            self._logs += 1

    def keep_writing(self, opened: Callable[[FreshetClient], AbstractContextManager[Log]]) -> bool:
        """Write a log until Kafka has lost what it needs, and another one must be begun; False: it refuses its own."""
        client = blocking_client(self.kernel, self._ports(), **self.credentials.shown)
        while True:
            try:
                with opened(client) as log:
                    write_log(
                        client,
                        KEYSPACE,
                        log,
                        "now",
                        include_before=self.before,
                        include_keyless=self.keyless,
                        clock=lambda: self.kernel.now,
                    )
            except ClientError as error:
                self._count(f"log ended: {error.code}")
                if self.has_lost(error.code):
                    return True
                if error.code not in EARLY:
                    self.complain(TELLS_ALL, f"the log ends for {error.code}: {error}")
            except ChangeLogError as error:
                if error.code not in STARTED_AGAIN:
                    self.complain(TELLS_ALL, f"the log refuses its own: {error}")
                    return False
            except (FreshetError, OSError) as error:  # Kafka, or the disk: it is started again
                self.say(f"the log can't be written: {error}")
            self.kernel.wait(lambda: False, 0.5)

    def _directory(self, log: int) -> Path:
        return self.disk.data_dir(LOGGER) / str(log)

    def _files(self, log: int) -> list[Path]:
        directory = self._directory(log)
        return sorted(directory.glob("*.jsonl")) if directory.exists() else []

    def _lines(self, log: int) -> Iterator[StreamEvent]:
        """The whole lines of a log, without the headings, as anybody would read them."""
        for path in self._files(log):
            whole = path.read_bytes().rpartition(b"\n")[0]
            for line in whole.split(b"\n")[1:]:
                yield msgspec.json.decode(line, type=StreamEvent)

    def check_logged(self, within_s: float) -> str:
        """What the last log lacks some time after the last commit, if there is one; "" if it is complete.

        The logs before it are true up to where they end.
        """
        if not self._logs:
            return ""
        self.disk.dies_at.pop(LOGGER, None)
        if not self.kernel.is_running(LOGGER):
            self._start_log()
        return self.lacks(lambda: self._logs, self._lines, "log", within_s)

    def lacks(
        self, count: Callable[[], int], events: Callable[[int], Iterable[StreamEvent]], what: str, within_s: float
    ) -> str:
        """What the last of ``count`` logs lacks, or "". ``events``: those of a log."""
        self.record_commits()
        last = self.record.histories[-1].end
        end = self.kernel.now + within_s

        def told_by(log: int, *, judge: bool = False) -> int:
            return self._told_by(events(log), f"{what} {log}", judge=judge)

        while not (self.outcome.violations or told_by(count()) >= last) and self.kernel.now < end:
            self.let(1.0)
        if self.outcome.violations:
            return ""
        told = [told_by(log, judge=True) for log in range(1, count() + 1)]
        return "" if self.outcome.violations or told[-1] >= last else f"{what} {count()} lacks commits"

    def _told_by(self, events: Iterable[StreamEvent], log: str, *, judge: bool) -> int:
        """The commit that a copy is at which is kept by a log's events; -1: none. ``judge``: and each one is true."""

        def complain(rule: str, what: str) -> None:
            if judge:
                self.complain(rule, what)

        copy = self.followed_copy(complain, log, self.keyless)
        try:
            for event in events:
                copy.take(event)
        except msgspec.DecodeError as error:
            complain(TELLS_ALL, f"a line of {log} can't be read: {error}")
        return -1 if copy.told is None else copy.told
