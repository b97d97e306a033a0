"""What goes wrong with Kafka in a history of the installation, beside that it is away; and who looks after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import httpx2

from lab.simulation.installation.judging import Answer
from lab.simulation.installation.operating.guarding import OPERATOR as OPERATES
from lab.simulation.installation.operating.letters import (
    FORGERIES,
    chosen,
    letter_of,
    pressed,
    requests,
    returnable,
    unresolved,
    wrong,
)
from lab.simulation.installation.parts import CONSUMERS, FRONTS, PROCESSES, SOURCES
from lab.simulation.installation.processes import KAFKA
from lab.simulation.installation.tables import TableFaults
from lab.simulation.installation.writing import KEYSPACE, TABLE, image_of
from lab.simulation.kafka.log import Draft
from lab.simulation.kernel.fronts import FrontTransport
from lab.simulation.operators.judging import Samples
from lab.simulation.operators.probes import PROBES
from lab.simulation.whole_processes.run import OPERATOR, PAUSES_S
from lab.simulation.whole_processes.words import EXPLAINS
from stream.kafka.dead_letters import dismiss, find_letter, read_letters, retry
from stream.kafka.topics import dead_letter_topic, events_topic, locations_topic
from stream.wire.codec import current_schema
from tokens.errors import FreshetError

EVENTS: Final = events_topic(KAFKA, KEYSPACE)
DEAD_LETTERS: Final = dead_letter_topic(KAFKA, KEYSPACE)
POISONS: Final = (
    b"",
    b"not a record",
    current_schema("RowFrame").header + b"\x02",
    current_schema("Marker").header + b"\x02",
    current_schema("AllocWriteId").header,
)
"""Values that no publisher writes. None is of a kind that is said only once: damage there begins a new epoch."""
FAULTS: Final = (
    "coordinator away",
    "tail lost",
    "commit record lost",
    "topic replaced",
    "beginning lost",
    "transaction left open",
    "poison",
    "dead letters' topic gone",
    "message buried",
)
OPS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "coordinator": (1, (len(PAUSES_S),)),
    "tail": (1, (2, 12)),
    "torn": (1, (2,)),
    "topic": (1, ()),
    "beginning": (1, (2, 5)),
    "stray": (1, (2,)),
    "poison": (2, (2, len(POISONS))),
    "letters topic": (1, (len(PAUSES_S),)),
    "letters": (1, (2, 2 * len(FRONTS))),
    "scrape": (3, (len(PROCESSES),)),
    "probe": (3, (2, len(PROBES))),
    "compact": (1, ()),
}
"""Op → (weight, how many values each integer has)."""
LETTERS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "bury": (3, (2, 12, FORGERIES)),
    "letters": (2, (2, 2 * len(FRONTS))),
    "latest": (3, ()),
    "owner": (4, (3,)),
}
"""Op → (weight, fields): those of who looks into the topics, and has messages put back, which some histories have."""


class KafkaFaults(TableFaults):
    """The ops on brokers, partitions and dead letters."""

    def _strikes(self, fault: str, what: str) -> None:
        self.count_fault(fault)
        self.say(what)

    def op_coordinator(self, pause: int) -> None:
        """Groups and transactions have no coordinator for a while."""
        self._strikes("coordinator away", "no coordinator answers")
        self.kafka.coordinator_away = True
        self.pause(pause)
        self.kafka.coordinator_away = False

    def op_tail(self, partition: int, lost: int) -> None:
        """A leader is elected that lacks the end of a partition."""
        number = partition % self.partitions

        def lose() -> None:
            self._strikes("tail lost", f"partition {number} loses its last {1 + lost} offsets")
            self.kafka.elect_uncleanly(EVENTS, number, 1 + lost, tears=False)

        self._loses(lose)

    def op_torn(self, partition: int) -> None:
        """A leader is elected that lacks nothing but the commit record of the source's last transaction."""
        number = partition % self.partitions

        def lose() -> None:
            log = self.kafka.topics[EVENTS].logs[number]
            if log.ends_with_a_commit:
                self._strikes("commit record lost", f"partition {number} loses the record of its last commit")
                self.kafka.elect_uncleanly(EVENTS, number, 1)

        self._loses(lose)

    def op_topic(self) -> None:
        """The topic is deleted and made anew, mostly under a running source. It notices, and begins a new epoch."""
        if EVENTS in self.kafka.topics and not self.kafka.down and self.may_lose_history():
            self._strikes("topic replaced", "the topic is deleted and made anew")
            self.kafka.replace(EVENTS)
            self.replace_history()
            self.watch_epochs(self.epoch + 1)
            self.start(SOURCES[0])
            self.await_epoch()

    def op_beginning(self, partition: int, sixths: int) -> None:
        """Retention deletes the first part of a partition."""
        number = partition % self.partitions

        def lose() -> None:
            before = self.kafka.topics[EVENTS].logs[number].end * (1 + sixths % 5) // 6
            self._strikes("beginning lost", f"partition {number} begins at {before}")
            self.kafka.lose_beginning(EVENTS, number, before)

        self._loses(lose)

    def _loses(self, lose: Callable[[], None]) -> None:
        """Events are lost, and their source begins a new epoch, under the conditions of `op_restore`."""
        if EVENTS in self.kafka.topics and not self.kafka.down and self.may_lose_history():
            self.kill_sources()
            lose()
            self.replace_history()
            self.begin_epoch()

    def replace_history(self) -> None:
        """All that was committed counts in the history of the source's next epoch."""
        self.record_commits()
        self.record.replace(self.kernel.now, epoch=self.epoch)

    def op_stray(self, partition: int) -> None:
        """Some publisher dies in the middle of a transaction."""
        events = self.kafka.topics.get(EVENTS)
        if events is not None and self.kafka.led and not self.kafka.down and events.known_at <= self.kafka.now:
            number = partition % self.partitions
            self._strikes("transaction left open", f"a transaction in partition {number} is left open")
            self.kafka.leave_open(EVENTS, number, b"junk")

    def op_poison(self, partition: int, kind: int) -> None:
        """Somebody writes what is no record of Freshet's."""
        if EVENTS in self.kafka.topics and not self.kafka.down:
            number, value = partition % self.partitions, POISONS[kind % len(POISONS)]
            self._strikes("poison", f"poison in partition {number}: {value!r}")
            draft = Draft(None, value, (), self.kafka.wall_ms)
            self.kafka.topics[EVENTS].logs[number].append([draft])
            self.let(1.0)

    def op_letters_topic(self, pause: int) -> None:
        """The topic of the dead letters is gone for a while."""
        topic = self.kafka.topics.pop(DEAD_LETTERS, None)
        if topic is not None:
            self._strikes("dead letters' topic gone", f"{DEAD_LETTERS} is gone")
            self.op_poison(pause, pause)
            self.pause(pause)
            self.kafka.topics[DEAD_LETTERS] = topic

    def op_letters(self, how: int, front: int = 0) -> None:
        """An operator has the dead letters' messages put back, or dismisses them, and mostly looks at a front first."""
        name = ["", "", *FRONTS][front % (2 + len(FRONTS))]

        def work() -> None:
            if name and self.kernel.is_running(name):
                self._look_at_letters(name)
            try:
                left = {letter.id for letter in read_letters(KAFKA, KEYSPACE, values=False)}
                for letter in sorted(left):
                    self.say(f"the operator sees {letter}: {find_letter(KAFKA, KEYSPACE, letter).reason}")
                if how % 2:
                    self._retry_letters(name)
                else:
                    dismiss(KAFKA, KEYSPACE)
            except FreshetError as error:
                self.say(f"the operator is told: {error}")

        self.say("an operator looks after the dead letters")
        self.kernel.spawn(OPERATOR, work)
        self.let(1.0)

    def _retry_letters(self, front: str) -> None:
        """Put back are the letters that may be, and no others. Not judged if letters or messages change meanwhile."""
        may_be_before = self._returnable()
        results = {each.letter.id: each.problem for each in retry(KAFKA, KEYSPACE, dry_run=True)}
        if may_be_before != self._returnable():
            return
        self.say(f"of {len(results)} letters {list(results.values()).count('')} can be put back")
        if {letter: not problem for letter, problem in results.items()} != may_be_before:
            self.complain(EXPLAINS, f"of letters are put back {results}, and may be {may_be_before}")
        if self.credentials.guarded and front and self.kernel.is_running(front):
            done = [letter for letter in results if self._press(front, letter, may_be=not results[letter])]
        else:
            done = [each.letter.id for each in retry(KAFKA, KEYSPACE) if not each.problem]
        self.outcome.answers["letters put back"] += len(done)
        left = set(done) & self._returnable().keys()
        if left:
            self.complain(EXPLAINS, f"{left} are put back, and still unresolved")

    def _press(self, front: str, letter: str, *, may_be: bool) -> bool:
        """Presses the button of the page that puts a letter's message back. Whether it did."""
        transport = FrontTransport(self.kernel, lambda: FRONTS[front])
        request = pressed(letter, self.credentials.secret(OPERATES))
        is_settled = may_be == self._returnable().get(letter)
        try:
            response = transport.handle_request(request)
        except (httpx2.HTTPError, OSError):
            return False
        self.say(f"{front}: the button of {letter}: {response.status_code}")
        if response.is_success and not may_be and is_settled:
            self.complain(EXPLAINS, f"{front} says that {letter} was put back, and it may not be")
        return response.is_success

    def _returnable(self) -> dict[str, bool]:
        events, letters = self.kafka.topics.get(EVENTS), self.kafka.topics.get(DEAD_LETTERS)
        return returnable(letters.logs[0], EVENTS, events.logs) if events is not None and letters is not None else {}

    def op_bury(self, partition: int, back: int, forgery: int) -> None:
        """A consumer of an earlier version has buried a message that ours read; or somebody forges its letter."""
        events, letters = self.kafka.topics.get(EVENTS), self.kafka.topics.get(DEAD_LETTERS)
        if events is None or letters is None or self.kafka.down:
            return
        number = partition % self.partitions
        log = events.logs[number]
        if records := log.committed(log.start, log.stable):
            record = chosen(records, back)
            self._strikes("message buried", f"a letter of message {record.offset} of partition {number}: {forgery}")
            letters.logs[0].append([letter_of(record, EVENTS, number, forgery % FORGERIES)])

    def _look_at_letters(self, name: str) -> None:
        """Has a front tell the dead letters, in its list, on its page and one by one."""
        transport, life = (
            FrontTransport(self.kernel, lambda: FRONTS[name], self.credentials.operator),
            self.kernel.process(name),
        )
        if (topic := self.kafka.topics.get(DEAD_LETTERS)) is None:
            return
        left = unresolved(topic.logs[0])
        for ask, meant in requests(left):
            response = self.looking.probe(life, ask, transport.handle_request)
            if response is None or unresolved(topic.logs[0]) != left:
                return
            self.say(f"{name}: {ask.path}: {response.status_code}")
            if what := wrong(ask, response, meant):
                self.complain(EXPLAINS, f"{name} is asked for {ask.path} while {dict(left)} are unresolved: {what}")

    def op_scrape(self, process: int) -> None:
        """An operator's tool asks a source or a consumer for its metrics and its health."""
        name = PROCESSES[process % len(PROCESSES)]

        def done(ready: bool, found: Samples) -> None:
            self.outcome.answers[f"scraped {'ready' if ready else 'not ready'}"] += 1
            self.say(f"{name} is {'ready' if ready else 'not ready'}, and shows {len(found)} values")
            if ready:
                self._is_ready(name)

        if self.kernel.is_running(name) and self.looking.scrape(name, done):
            self.let(0.2)

    def _is_ready(self, name: str) -> None:
        self.said_ready.add(name)
        if not self.epoch and name not in CONSUMERS:  # those have caught up with an empty log
            self.complain(EXPLAINS, f"{name} is ready before anything was published")

    def op_probe(self, front: int, what: int) -> None:
        """Somebody asks a front without a client library."""
        name = list(FRONTS)[front % len(FRONTS)]
        if not self.kernel.is_running(name):
            return
        probe, life = PROBES[what % len(PROBES)], self.kernel.process(name)
        transport = FrontTransport(self.kernel, lambda: FRONTS[name], self.credentials.operator)

        def work() -> None:
            asked = self.judge.asked("", self.kernel.now)
            response = self.looking.probe(life, probe, transport.handle_request)
            status = response.status_code if response is not None else "no answer"
            self.outcome.answers[f"probe {status}"] += 1
            self.say(f"{name}: {probe.method} {probe.path}: {status}")
            found = response.json() if response is not None and probe.row and status in (200, 404) else {}
            if "row" in found:  # else the front knows no such table yet
                answer = (image_of(found["row"]), found["served_from"], found["freshness"], found["why"])
                self.record_commits()
                self.judge.answered("", asked, self.kernel.now, [Answer((TABLE, (probe.row,)), *answer)])
            if probe.template == "/readyz" and status == 200:
                self._is_ready(name)

        self._do(work, 2)

    def op_compact(self) -> None:
        """The cleaner has gone through the announcements."""
        if locations_topic(KAFKA) in self.kafka.topics:
            self.say("the announcements are compacted")
            self.kafka.compact(locations_topic(KAFKA))
