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
from lab.simulation.installation.following.readers import EARLY, LOST, Following
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
        for path in self._files()[-1:]:
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
                    self._directory(), heading, file_bytes_max=FILE_BYTES, clock=lambda: self.kernel.time
                ) as files:
                    write_log(client, KEYSPACE, files, "now", clock=lambda: self.kernel.now)
            except ClientError as error:
                self._count(f"log ended: {error.code}")
                if error.code in LOST:
                    self._logs += 1
                elif error.code not in EARLY:
                    self.complain(TELLS_ALL, f"the log ends for {error.code}: {error}")
            except ChangeLogError as error:
                self.complain(TELLS_ALL, f"the log refuses its own files: {error}")
                return
            except OSError as error:  # the disk: it is started again
                self.say(f"the log can't be written: {error}")
            self.kernel.wait(lambda: False, 0.5)

    def _directory(self) -> Path:
        return self.disk.data_dir(LOGGER) / str(self._logs)

    def _files(self) -> list[Path]:
        directory = self._directory()
        return sorted(directory.glob("*.jsonl")) if directory.exists() else []

    def _lines(self) -> Iterator[StreamEvent]:
        """The whole lines of the log, without the headings, as anybody would read them."""
        for path in self._files():
            whole = path.read_bytes().rpartition(b"\n")[0]
            for line in whole.split(b"\n")[1:]:
                yield msgspec.json.decode(line, type=StreamEvent)

    def check_logged(self, within_s: float) -> str:
        """What the last log lacks some time after the last commit, if there is one; "" if it is complete."""
        if not self._logs:
            return ""
        self.disk.dies_at.pop(LOGGER, None)
        if not self.kernel.is_running(LOGGER):
            self._start_log()
        self.record_commits()
        last = self.record.histories[-1].end
        end = self.kernel.now + within_s
        while not (self.outcome.violations or self._is_at(last)) and self.kernel.now < end:
            self.let(1.0)
        return "" if self.outcome.violations or self._is_at(last, judge=True) else f"log {self._logs} lacks commits"

    def _is_at(self, last: int, *, judge: bool = False) -> bool:
        """Whether a copy that is kept by the log's lines is at the last commit. ``judge``: and each line is true."""

        def complain(rule: str, what: str) -> None:
            if judge:
                self.complain(rule, what)

        copy = FollowedCopy(self.record, SHARD, frozenset({ACCOUNTS.name, ORDERS.name}), complain, f"log {self._logs}")
        try:
            for event in self._lines():
                copy.take(event)
        except msgspec.DecodeError as error:
            complain(TELLS_ALL, f"a line of log {self._logs} can't be read: {error}")
        return copy.told is not None and copy.told >= last
