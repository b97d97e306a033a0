"""``freshet log`` keeps a complete log of a keyspace in files, and is killed anywhere, also between two writes.

A log is judged by its lines alone: read in their order they are a change stream, which keeps a copy as any reader's. So
a line too few, one too many, or a torn one is found out. When Kafka has lost what a log needs to go on, its operator
begins another one in another directory, as the page of the log says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from lab.simulation.engine import Outcome
from lab.simulation.installation.following.copies import TELLS_ALL, FollowedCopy
from lab.simulation.installation.following.readers import EARLY, Following
from lab.simulation.installation.processes import SHARD
from lab.simulation.installation.writing import ACCOUNTS, KEYSPACE, ORDERS
from lab.simulation.kernel.fronts import blocking_client
from serving.changelog.errors import ChangeLogError
from serving.changelog.files import Heading, LogFiles
from serving.changelog.writing import write_log
from serving.client.errors import ClientError
from serving.client.streaming import StreamEvent

LOGGER: Final = "logger"
FILE_BYTES: Final = 3_000
"""So that a log has several files."""
STEPS_MAX: Final = 6
"""Of the steps of writes that a log's process dies within."""
TORN: Final = (b"", b'{"kind":"transac', b"\xff\xfe\n", b"{}\n")
"""What a crash of the machine may leave behind a log's last line."""


class Logging(Following):
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
        client = blocking_client(self.kernel, self._ports())
        while True:
            try:
                heading = Heading(KEYSPACE, [])
                with LogFiles(
                    self._directory(self._logs), heading, file_bytes_max=FILE_BYTES, clock=lambda: self.kernel.time
                ) as files:
                    write_log(client, KEYSPACE, files, "now", clock=lambda: self.kernel.now)
            except ClientError as error:
                self._count(f"log ended: {error.code}")
                if self.has_lost(error.code):
                    self._logs += 1
                elif error.code not in EARLY:
                    self.complain(TELLS_ALL, f"the log ends for {error.code}: {error}")
            except ChangeLogError as error:
                self.complain(TELLS_ALL, f"the log refuses its own files: {error}")
                return
            except OSError as error:  # the disk: it is started again
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
        self.record_commits()
        last = self.record.histories[-1].end
        end = self.kernel.now + within_s
        while not (self.outcome.violations or self._told_by(self._logs) >= last) and self.kernel.now < end:
            self.let(1.0)
        if self.outcome.violations:
            return ""
        told = [self._told_by(log, judge=True) for log in range(1, self._logs + 1)]
        return "" if self.outcome.violations or told[-1] >= last else f"log {self._logs} lacks commits"

    def _told_by(self, log: int, *, judge: bool = False) -> int:
        """The commit that a copy is at which is kept by a log's lines; -1: none. ``judge``: and each line is true."""

        def complain(rule: str, what: str) -> None:
            if judge:
                self.complain(rule, what)

        copy = FollowedCopy(self.record, SHARD, frozenset({ACCOUNTS.name, ORDERS.name}), complain, f"log {log}")
        try:
            for event in self._lines(log):
                copy.take(event)
        except msgspec.DecodeError as error:
            complain(TELLS_ALL, f"a line of log {log} can't be read: {error}")
        return -1 if copy.told is None else copy.told
