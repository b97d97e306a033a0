"""Judges what consumers have made durable: that they do, that it can be opened again, and that the log gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final

from consumers.store.errors import StoreError
from consumers.store.store import partition_directory
from consumers.store.view import ROCKS_NAME, StoreView
from lab.simulation.kafka.log import PartitionLog
from lab.simulation.naive.facts import facts_of_bytes, facts_of_naive, first_difference
from lab.simulation.naive.judging import BY_THE_RULES
from lab.simulation.naive.partition import NaivePartition
from lab.simulation.whole_processes.run import OPERATOR, WholeProcesses
from lab.simulation.whole_processes.words import DURABLE

COMMITS_IN_S: Final = 25.0
"""Longer than the longest time between two commits, and the longest pause after one that failed."""
LOOKS_IN_S: Final = 60.0


class Stores:
    """The stores of ``consumers``. ``logs``: keyspace → those of its partitions."""

    def __init__(
        self, run: WholeProcesses, logs: Mapping[str, Sequence[PartitionLog]], consumers: Sequence[str]
    ) -> None:
        self._run = run
        self._logs = logs
        self._consumers = consumers

    def check_committed(self) -> None:
        """Whatever is in the log becomes durable while consumers run. Nobody writes any more."""
        run = self._run
        late = [(name, number, _last(log)) for name, logs in self._logs.items() for number, log in enumerate(logs)]

        def work() -> None:
            deadline = run.kernel.now + COMMITS_IN_S
            while late:
                late[:] = [each for each in late if not self._has(*each)]
                if late and run.kernel.now > deadline:
                    what = ", ".join(f"offset {offset} of {name}/{number}" for name, number, offset in late)
                    run.complain(DURABLE, f"nobody has committed {what}, {COMMITS_IN_S:g} s after it was written")
                    return
                run.kernel.wait(lambda: False, 1.0 if late else 0.0)

        self._look(work, COMMITS_IN_S + LOOKS_IN_S)

    def check_content(self) -> None:
        """What is durable is what the rules make of the log. The consumers have ended."""

        def work() -> None:
            for keyspace, logs in self._logs.items():
                for number, log in enumerate(logs):
                    for view in self._views(keyspace, number):
                        self._compare(view, log)

        self._look(work, LOOKS_IN_S)

    def _look(self, work: Callable[[], None], within_s: float) -> None:
        thread = self._run.kernel.spawn(OPERATOR, work)
        self._run.run_until(lambda: thread.done, within_s)

    def _views(self, keyspace: str, number: int) -> Iterator[StoreView]:
        """A partition's stores, but for those that are not made yet, or of which a bit has flipped."""
        for name in self._consumers:
            directory = partition_directory(self._run.disk.data_dir(name), keyspace, number)
            if not (directory / ROCKS_NAME / "CURRENT").exists():
                continue
            try:
                view = StoreView(directory)
            except StoreError as error:
                if name not in self._run.disk.damaged:
                    self._run.complain(DURABLE, f"the store {name} {keyspace}/{number} can't be opened: {error}")
                continue
            with closing(view):
                yield view

    def _has(self, keyspace: str, number: int, offset: int) -> bool:
        """Whether a message is durable in some store."""
        views = self._views(keyspace, number)
        return any(view.head.offset > offset for view in views) or bool(self._run.disk.damaged)

    def _compare(self, view: StoreView, log: PartitionLog) -> None:
        head, entries = view.head, dict(view.items())
        if not entries:
            return
        naive = NaivePartition(head.begin)
        for record in log.committed(head.begin, head.offset):
            naive.fold(record.offset, record.value)
        if found := first_difference(facts_of_bytes(entries), facts_of_naive(naive, head.offset)):
            what = f"{view.manifest.keyspace}/{view.manifest.partition} at offset {head.offset}: {found}"
            self._run.complain(BY_THE_RULES, what)
        self._run.outcome.answers["stores compared"] += 1


def _last(log: PartitionLog) -> int:
    """The offset of the last message that a reader is given; -1 if there is none."""
    return max((record.offset for record in log.committed(log.start, log.stable)), default=-1)
