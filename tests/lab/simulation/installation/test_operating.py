"""What applications and operators do in the installation is done, and is judged."""

from __future__ import annotations

import pytest

from consumers.owner.protocol import Status
from consumers.owner.server import OwnerServer
from consumers.snapshots.pruning import Verdict
from lab.simulation.engine import History, Op, run_one
from lab.simulation.installation.faults import OF_REPLICAS
from lab.simulation.installation.operating import snapshots
from lab.simulation.installation.operating.guarding import SECRETS
from lab.simulation.installation.operating.locating import NEVER_BACK
from lab.simulation.installation.world import InstallationWorld
from lab.simulation.whole_processes.words import EXPLAINS
from serving.client.answers import PlaceAnswer
from serving.locations.places import Location
from serving.reads.locations import LocationReads

WORLD = InstallationWorld()
CAUGHT_UP: Op = ("let", 3)
PLACED: History = [("world", 1, 0, 0, 0, 0, 0, 1), CAUGHT_UP]
WRITE: Op = ("write", 1, 1, 1, 3)
KEEP: History = [("invalidate", 0, 2), WRITE, CAUGHT_UP, ("cached", 1, 1, 3), ("cached", 1, 1, 3)]
GIVE: History = [WRITE, CAUGHT_UP, ("give", 1, 1, 0, 3), ("give", 1, 1, 2, 3)]
SNAPSHOT: History = [WRITE, CAUGHT_UP, ("snapshot", 0, 2), ("prune", 0), ("lose", 0, 3)]
LOCATE: History = [("follower", 0, 3), *(("locate", 0, what, 3) for what in range(10))]


@pytest.mark.parametrize(
    ("ops", "met"),
    [
        (KEEP, ["kept by nobody", "kept by the application"]),
        (GIVE, ["given and kept", "given and refused"]),
        (SNAPSHOT, ["snapshot made", "snapshots pruned", "stores compared"]),
        (LOCATE, ["locations 200"]),
    ],
    ids=["keep", "give", "snapshot", "locate"],
)
def test_an_application_or_operator_gets_what_it_asks_for(ops: History, met: list[str]) -> None:
    """Rows are kept and given, snapshots made, a front tells whom it believes; and no rule is broken."""
    outcome = run_one(WORLD, [*PLACED, *ops])
    assert outcome.violations == []
    assert [each for each in met if not outcome.answers[each]] == []


def test_a_store_begins_with_a_snapshot() -> None:
    """A consumer that lost its disk does not fold from the topic's beginning; a damaged snapshot is not used."""
    told = "\n".join(run_one(WORLD, [*PLACED, *SNAPSHOT], trace=True).trace)
    assert "store made from a snapshot" in told
    spoilt = [*PLACED, *SNAPSHOT[:-1], *[("spoil", 1)] * 30, SNAPSHOT[-1]]
    outcome = run_one(WORLD, spoilt, trace=True)
    assert outcome.violations == []
    assert "no snapshot to begin with" in "\n".join(outcome.trace).rpartition("its disk is gone")[2]


def test_a_front_that_goes_back_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge of locations reads what is told, and not what the cache says of itself."""
    real = LocationReads._place

    def older(self: LocationReads, location: Location) -> PlaceAnswer:
        place = real(self, location)
        place.epoch = -int(self._locations.clock())
        return place

    monkeypatch.setattr(LocationReads, "_place", older)
    outcome = run_one(WORLD, [*PLACED, ("locate", 0, 0, 3), CAUGHT_UP, ("locate", 0, 0, 3)])
    assert [each.rule for each in outcome.violations] == [NEVER_BACK]


def test_a_buried_message_is_put_back() -> None:
    """A letter of a consumer of an earlier version is resolved by folding its message again, and no rule is broken."""
    ops: History = [*PLACED, WRITE, ("let", 2), ("bury", 0, 1, 0), ("letters", 1, 0)]
    outcome = run_one(WORLD, ops)
    assert outcome.violations == []
    assert outcome.answers["letters put back"] == 1


def test_secrets_are_exchanged_amid_the_traffic() -> None:
    """Sessions go on in a guarded history, the button of a letter works, and a secret of before opens nothing."""
    guarded: History = [("world", 1, 0, 0, 0, 0, 0, 0, 1), CAUGHT_UP, WRITE, ("read", 1, 1, 1, 3)]
    leaver = [*SECRETS].index("leaver")
    then: History = [("exchange", 1), CAUGHT_UP, ("read", 1, 1, 1, 3), ("stranger", 0, leaver, 0, 3)]
    press: History = [("bury", 0, 1, 0), ("letters", 1, 2)]
    outcome = run_one(WORLD, [*guarded, *then, *press])
    assert outcome.violations == []
    assert outcome.answers["stranger: unauthorized"] == 1
    assert outcome.answers["letters put back"] == 1


def test_a_drained_consumer_hands_over_what_it_owns() -> None:
    """The other one takes it; without another one the operator waits in vain, and no rule is broken either."""
    two: History = [("world", 1, 1, 1, 0, 0, 0, 1), CAUGHT_UP, WRITE]
    assert run_one(WORLD, [*two, ("drain", 0)]).answers["drained"] == 1
    alone = run_one(WORLD, [*PLACED, ("drain", 0)])
    assert (alone.violations, alone.answers["drained"]) == ([], 0)


def test_an_audits_verdict_is_shown_by_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that forgets what it was told is found out."""
    ops: History = [*PLACED, WRITE, CAUGHT_UP, ("owner", 1)]
    assert run_one(WORLD, ops).answers["owner answered"] == 1
    monkeypatch.setattr(OwnerServer, "_note_verdicts", lambda self, request: self.answer(Status(0, request.keyspace)))
    assert [each.rule for each in run_one(WORLD, ops).violations] == [EXPLAINS]


def test_a_snapshot_too_many_is_not_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator who is told that the newest snapshot goes has none to begin with."""
    monkeypatch.setattr(snapshots, "judge", lambda found, *_: [Verdict(each, stays=False, why="") for each in found])
    assert [each.rule for each in run_one(WORLD, [*PLACED, *SNAPSHOT]).violations] == [EXPLAINS]


@pytest.mark.parametrize("what", range(1, len(OF_REPLICAS)), ids=OF_REPLICAS[1:])
def test_a_source_reads_at_the_replica_while_that_keeps_up(what: int) -> None:
    """Whatever befalls the replica, the server itself is read then, and no rule is broken."""
    begin: History = [("world", 1, 0, 0, 0, 1, 0, 0, 32), CAUGHT_UP, WRITE]
    outcome = run_one(WORLD, [*begin, ("replica", what, 4), WRITE, ("let", 4), ("read", 1, 1, 1, 3)])
    assert outcome.violations == []
    assert outcome.answers["the binlog is read at replica"]
    assert outcome.answers["the binlog is read at primary"]
