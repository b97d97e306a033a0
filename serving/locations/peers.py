"""A location from what its own instances say, without the topic: "RPC refresh". Pure.

Those in the old entry are asked, in this zone if there are any there. Their word counts only if it can't hide a change:
each answered, names the same members as the entry, and they agree on the leader. Then it may tell that the leader and
a follower have changed places, or that nothing changed. What they don't see (a follower of another zone, one that is
new) is why the topic is read now and then all the same (`serving.locations.cache`). The conditions, and the cases in
the tests, are OceanBase's.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from serving.locations.places import Location, Replica, Version


class PeerAnswer(NamedTuple):
    """What one instance says of a partition.

    ``leads``: it says that it is the leader. ``leader``: the instance that it takes for the leader, "" if for none;
    ``epoch`` and ``term`` are that one's. ``members``: all instances that it knows of, itself among them.
    """

    instance: str
    leads: bool
    leader: str
    epoch: int
    term: int
    members: frozenset[str]

    @property
    def version(self) -> Version:
        """Of what it says."""
        return Version(self.epoch, self.term, self.leader)


class Judged(NamedTuple):
    """The location that the peers' answers prove, or None, and why."""

    location: Location | None
    why: str


def whom_to_ask(known: Location, zone: str, is_down: Container[Replica] = ()) -> Sequence[Replica]:
    """The instances of the entry to ask: those of this zone, else all. None where peers can't prove anything.

    One that is known not to answer makes its zone's word incomplete, so the topic is read at once.
    """
    if known.gone or known.leader is None or any(not each.instance for each in known.replicas):
        return ()
    asked = [each for each in known.replicas if each.zone == zone] or list(known.replicas)
    return () if any(each in is_down for each in asked) else asked


def judge(known: Location, asked: Sequence[Replica], answers: Mapping[str, PeerAnswer]) -> Judged:
    """What the ``answers`` of the ``asked`` prove of an entry; ``answers`` by instance, without those that failed."""
    if not asked:
        return Judged(None, "there is no peer to ask")
    given = [answers[each.instance] for each in asked if each.instance in answers]
    if len(given) < len(asked):
        return Judged(None, f"{len(asked) - len(given)} of {len(asked)} did not answer, or don't hold it")
    members = frozenset(each.instance for each in known.replicas)
    if any(each.members != members for each in given):
        return Judged(None, "the members changed")
    claims = [each for each in given if each.leads]
    if len({each.instance for each in claims}) > 1:
        return Judged(None, "two of them say that they lead")
    named = {each.version for each in given if each.leader}
    if claims:
        if any(each.version > claims[0].version for each in given if each.leader):
            return Judged(None, "another leader is known that came later")
        said = claims[0].version
    elif len(named) == 1:
        [said] = named
    else:
        return Judged(None, "they name several leaders" if named else "none of them knows a leader")
    if said < known.version:
        return Judged(None, "they know less than the entry")
    if said.instance not in members:
        return Judged(None, "the leader is new")
    return Judged(_led_by(known, said), "the peers agree")


def _led_by(known: Location, said: Version) -> Location:
    """The entry with the named leader; the one of before follows (it goes on folding, or its next answer says no)."""
    leader = next(each for each in known.replicas if each.instance == said.instance)
    followers = tuple(each for each in known.replicas if each is not leader)
    return known._replace(version=said, leader=leader, followers=followers)
