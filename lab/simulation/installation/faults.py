"""What befalls an installation: processes die, servers go away, links break, disks fail, history is lost."""

from __future__ import annotations

from signal import SIGTERM
from typing import Final

from lab.simulation.installation.demanding import Demanding
from lab.simulation.installation.parts import CONSUMERS, FOLLOWER, OTHER_SOURCE, PROCESSES, SOURCES
from lab.simulation.installation.writing import KEYSPACE
from lab.simulation.mariadb.server import Break, SimulatedServer
from lab.simulation.whole_processes.run import CLIENT

PLACES: Final = ("before", "after", "middle")
WORDS: Final = ("", "COMMIT", "SELECT")
DIES_WITHIN: Final = 40
OF_REPLICAS: Final = (
    "it comes back",
    "it crashes",
    "it is cut off",
    "it falls behind",
    "it is made anew",
    "it is set wrong",
)
STEPPED: Final = (*PROCESSES, OTHER_SOURCE, FOLLOWER, CLIENT)
"""Processes with machines of their own. After them come the servers."""
SERVERS: Final = 3
STEPS_S: Final = (-8.0, -2.0, -0.3, 0.3, 2.0, 8.0)
"""By how much a clock is set."""
FAR_BEHIND_S: Final = 8.0
"""Longer than a source waits for a replica that it reads."""
BEHIND_MAX: Final = 3
"""Commits that a replica may lack and be promoted."""
STOPS_IN_S: Final = 20.0
RESTORES_IN_S: Final = 60.0


class Faults(Demanding):
    """The ops that break something."""

    _epoch_due = 0
    """The first epoch that would be one that an operator has asked for last."""

    def start(self, name: str, *, new_epoch: bool = False) -> None:
        """As there. An operator who has asked for a new epoch, and was not told of it, asks again."""
        super().start(name, new_epoch=new_epoch or (name == SOURCES[0] and self.epoch < self._epoch_due))

    def op_start(self, process: int) -> None:
        """See `WholeProcesses.op_start`."""
        name = PROCESSES[process % len(PROCESSES)]
        if name == SOURCES[1] and not self.kernel.is_running(name):
            self.count_fault("second source")
        super().op_start(process)

    def op_die_writing(self, consumer: int, steps: int) -> None:
        """A consumer will die in the middle of a write to its disk."""
        name = CONSUMERS[consumer % len(CONSUMERS)]
        if self.kernel.is_running(name):
            self.count_fault("death while writing")
            self.disk.dies_at[name] = 1 + steps % DIES_WITHIN
            self.say(f"{name} will die in step {self.disk.dies_at[name]} of its writes")

    def op_stop(self, consumer: int) -> None:
        """A consumer is told to stop, and ends in order."""
        name = CONSUMERS[consumer % len(CONSUMERS)]
        if self.kernel.is_running(name) and self.kernel.loop_of(name).handles(SIGTERM):
            self.count_fault("stop")
            self.stop(name)

    def stop(self, name: str) -> None:
        """A consumer ends in order."""
        self.say(f"{name} stops")
        self.kernel.loop_of(name).signal(SIGTERM)
        self.let(STOPS_IN_S)
        self.kernel.kill(name)

    def op_lose_answers(self, process: int, count: int) -> None:
        """Kafka does what a process asks for, and its answers are lost."""
        name = PROCESSES[process % len(PROCESSES)]
        self.count_fault("Kafka's answers lost")
        self.say(f"{name} gets no answer from Kafka {1 + count % 3} times")
        self.kafka.answers_to_lose[name] = 1 + count % 3

    def op_slow(self, what: int, pause: int) -> None:
        """Kafka, or the network, is slow for a while."""
        self.count_fault("slow")
        self.say("the network is slow" if what % 2 else "Kafka is slow")
        delay_s = self.kernel.network.delay_s
        if what % 2:
            self.kernel.network.delay_s = 0.5
        else:
            self.kafka.slow_s = 0.3
        self.pause(pause)
        self.kernel.network.delay_s, self.kafka.slow_s = delay_s, 0.0

    def op_cut(self, process: int, server: int, pause: int) -> None:
        """A process does not reach Kafka, or MariaDB, for a while."""
        self.cut_off((*PROCESSES, CLIENT)[process % (len(PROCESSES) + 1)], server, self.primary, pause)

    def op_link(self, consumer: int, front: int, reset: int, pause: int) -> None:
        """The connections of a front to an owner break, or nothing passes for a while."""
        owner, name = CONSUMERS[consumer % len(CONSUMERS)], PROCESSES[-1 - front % 2]
        if reset % 2:
            if self.kernel.network.reset(owner, name):
                self.count_fault("link reset")
                self.say(f"{name} loses its connections to {owner}")
            return
        self.count_fault("link cut")
        self.say(f"nothing passes between {name} and {owner}")
        self.kernel.network.cut(owner, name)
        self.pause(pause)
        self.kernel.network.heal()

    def op_mariadb(self, down: int, pause: int) -> None:
        """MariaDB crashes, or comes back."""
        self.crash_or_return(self.primary, down, pause)

    def op_break(self, process: int, word: int, place: int) -> None:
        """A connection to MariaDB breaks at a statement: before it is executed, after that, or within the answer."""
        name = (*PROCESSES, CLIENT)[process % (len(PROCESSES) + 1)]
        self.count_fault("connection breaks")
        broken = Break(name, WORDS[word % len(WORDS)], PLACES[place % len(PLACES)])
        self.say(f"the connection of {name} will break {broken.place} {broken.word or 'a statement'}")
        self.primary.breaks.append(broken)

    def op_lag(self, commit: int, replica: int) -> None:
        """Commits are visible later than they are in the binlog, and the replica follows later still."""
        self.count_fault("lag")
        commit_s, lag_s = (0.0, 0.002, 0.2)[commit % 3], (0.0, 0.05, 3.0)[replica % 3]
        self.primary.behaviour.commit_s = lambda: commit_s
        self.replica.behaviour.lag_s = lag_s
        self.say(f"commits are visible after {commit_s} s, at the replica {lag_s} s later")

    def op_step(self, machine: int, by: int) -> None:
        """The clock of a process's or a server's machine is set. Only in histories whose clocks differ."""
        if not self.has_clocks:
            return
        self.count_fault("clock stepped")
        seconds, number = STEPS_S[by % len(STEPS_S)], machine % (len(STEPPED) + SERVERS)
        if number < len(STEPPED):
            name, errors = STEPPED[number], self.kernel.clock_errors_s
            errors[name] = errors.get(name, 0.0) + seconds
        else:
            name = ("MariaDB", "the replica", "the other keyspace's server")[number - len(STEPPED)]
            server = (self.primary, self.replica, self.depot)[number - len(STEPPED)]
            server.behaviour.clock_shift_s += seconds
        self.say(f"the clock of {name} is set by {seconds:+} s")
        self.note_clocks()

    def op_replica(self, what: int, pause: int) -> None:
        """Something befalls the replica at which the source reads: the source must read at the server itself, or wait.

        Set wrong, it may leave changes out. Only in histories in which the source reads at one.
        """
        if not self.follows_replica:
            return
        what %= len(OF_REPLICAS)
        self.say(f"the replica: {OF_REPLICAS[what]}")
        if what < 2:
            self.crash_or_return(self.replica, what, pause)
        elif what == 2:
            self.cut_off(SOURCES[0], 1, self.replica, pause)
        elif what == 3:
            self.count_fault("replica falls behind")
            self.replica.behaviour.lag_s = FAR_BEHIND_S
            self.pause(pause)
        elif what == 4 and not self.replica.down:
            self.count_fault("replica made anew")
            self.replica.restore(0)
            self.replica.follow(self.primary)
            self.pause(pause)
        elif what == 5:
            self.count_fault("replica set wrong")
            self.replica.variables["slave_exec_mode"] = "IDEMPOTENT"
            self.pause(pause)
            self.replica.variables["slave_exec_mode"] = "STRICT"

    def op_restore(self, lost: int) -> None:
        """MariaDB is restored to an earlier state, and its source begins a new epoch, as operators are told to do.

        Not before there is an epoch, and not while a session has writes without one (guarantees, limits 2 and 10).
        """
        self.record_commits()
        kept = max(len(self.primary.history) - 1 - lost % 3, self.made)
        if self.reads_replica or kept >= len(self.primary.history) or not self.may_lose_history():
            return
        self.count_fault("restore")
        self.say(f"MariaDB is restored without its last {len(self.primary.history) - kept} commits")
        self.kill_sources()
        self.primary.restore(kept)
        self.truths[KEYSPACE].restored(self.kernel.now, kept, self.epoch)
        self.begin_epoch()

    def op_failover(self, how: int, pause: int) -> None:
        """The replica becomes the primary, once it has caught up or as it is; or both servers are restored.

        Under the conditions of `op_restore`. What was the primary is a replica from then on. If nothing is lost, it is
        read for a while before it follows the new one; else it is made anew.
        """
        self.replica.catch_up()
        behind = len(self.primary.history) - len(self.replica.history)
        is_ready = not self.replica.down and behind <= BEHIND_MAX and len(self.replica.history) >= self.made
        if not self.reads_replica or not is_ready or not self.may_lose_history():
            return
        self.record_commits()
        if how % 3 == 2:
            self._restore_both()
            return
        self.count_fault("failover")
        old, new = self.primary, self.replica
        old.kill()
        if how % 3:
            new.catch_up()
        else:
            _catch_up_at_once(new)
        kept, has_lost = len(new.history), len(new.history) < len(old.history)
        self.say(f"the replica becomes the primary, {len(old.history) - kept} commits are lost")
        if has_lost:
            self.kill_sources()
        self.exchange_servers()
        old.start()
        if has_lost:
            _copy(new, old)
            self.truths[KEYSPACE].restored(self.kernel.now, kept, self.epoch)
            self.begin_epoch()
        else:
            self.pause(pause)
            old.follow(new)

    def _restore_both(self) -> None:
        self.count_fault("restore")
        kept = max(len(self.primary.history) - 2, self.made)
        self.say(f"MariaDB is restored without its last {len(self.primary.history) - kept} commits, its replica anew")
        self.kill_sources()
        self.primary.restore(kept)
        _copy(self.primary, self.replica)
        self.truths[KEYSPACE].restored(self.kernel.now, kept, self.epoch)
        self.begin_epoch()

    def may_lose_history(self) -> bool:
        """Whether a history can be replaced so that all sessions can be told. Waits for their requests."""
        if not self.epoch or self.primary.down:
            return False
        return self.run_until(lambda: not self.under_way, RESTORES_IN_S) and not self.has_unplaced_writes()

    def kill_sources(self) -> None:
        """Nobody publishes."""
        for name in SOURCES:
            self.kernel.kill(name)

    def begin_epoch(self) -> None:
        """An operator has a source begin a new epoch."""
        self._epoch_due = self.epoch + 1
        self.watch_epochs(self._epoch_due)
        self.start(SOURCES[0])
        self.await_epoch()

    def await_epoch(self) -> None:
        """The history goes on when every partition is in the new epoch."""
        self.run_until(lambda: not self.record.is_ambiguous, RESTORES_IN_S)

    def op_disk(self, consumer: int, what: int, pause: int) -> None:
        """A consumer's disk is full, or fails, for a while."""
        name = CONSUMERS[consumer % len(CONSUMERS)]
        fault, where = (("disk full", self.disk.full), ("disk fails", self.disk.failing))[what % 2]
        self.count_fault(fault)
        self.say(f"{name}: {fault}")
        where.add(name)
        self.pause(pause)
        where.discard(name)

    def op_damage(self, consumer: int, lose: int) -> None:
        """A bit of a store flips; or all files of a consumer that is down are gone."""
        name = CONSUMERS[consumer % len(CONSUMERS)]
        if lose % 4 == 3 and not self.kernel.is_running(name):
            self.count_fault("disk lost")
            self.say(f"the disk of {name} is gone")
            self.disk.lose(name)
        elif damaged := self.disk.damage(name):
            self.count_fault("damage")
            self.say(f"a bit of {damaged} flips")


def _catch_up_at_once(server: SimulatedServer) -> None:
    lag_s, server.behaviour.lag_s = server.behaviour.lag_s, 0.0
    server.catch_up()
    server.behaviour.lag_s = lag_s


def _copy(source: SimulatedServer, server: SimulatedServer) -> None:
    """A replica is made of a backup of now."""
    server.restore(0)
    server.follow(source)
    _catch_up_at_once(server)
