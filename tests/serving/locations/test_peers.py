"""What the instances of an entry prove without the topic (L7): OceanBase's cases as a table."""

from __future__ import annotations

import pytest

from serving.locations.peers import PeerAnswer, judge, whom_to_ask
from serving.locations.places import Location, Replica
from tests.serving.locations.places import at, led_by

KNOWN = led_by("a", 5, "b", "c")
ALL = frozenset("abc")


def says(name: str, leader: str = "a", epoch: int = 5, members: frozenset[str] = ALL, term: int = 0) -> PeerAnswer:
    return PeerAnswer(name, name == leader, leader, epoch, term, members)


def judged(*answers: PeerAnswer, known: Location = KNOWN) -> Location | None:
    return judge(known, known.replicas, {each.instance: each for each in answers}).location


@pytest.mark.parametrize(
    ("answers", "leader"),
    [
        pytest.param((says("a"), says("b"), says("c")), "a", id="nothing changed"),
        pytest.param((says("a", "b", 6), says("b", "b", 6), says("c", "b", 6)), "b", id="leader changed"),
        pytest.param((says("a", "b", 5, term=1), says("b", "b", 5, term=1), says("c")), "b", id="a term later"),
        pytest.param((says("a"), says("b", "b", 6), says("c")), None, id="two claim to lead"),
        pytest.param((says("a", "b", 6), says("b", "a"), says("c", "b", 6)), None, id="several named, none leads"),
        pytest.param((says("a", "b", 6), says("b", ""), says("c", "b", 6)), "b", id="none leads, exactly one is named"),
        pytest.param((says("a", ""), says("b", ""), says("c", "")), None, id="no leader at all"),
        pytest.param((says("a"), says("b")), None, id="one of three timed out"),
        pytest.param((says("a"), says("b"), says("c", members=ALL | {"d"})), None, id="a follower was added"),
        pytest.param((says("a"), says("b", members=ALL - {"c"}), says("c")), None, id="a member left"),
        pytest.param((says("a"), says("b", members=frozenset("abd")), says("c")), None, id="a member was replaced"),
        pytest.param((says("a", "d", 6), says("b", "d", 6), says("c", "d", 6)), None, id="the leader is new"),
        pytest.param((says("a", epoch=4), says("b", epoch=4), says("c", epoch=4)), None, id="they know less"),
        pytest.param((says("a"), says("b", "c", 6), says("c", "c", 5)), None, id="a claim that is not the latest"),
        pytest.param((says("a"), says("b", "c", 6), says("c", "", 0)), None, id="its successor is known"),
        pytest.param((), None, id="nobody answered"),
    ],
)
def test_the_peers_word_counts_only_if_it_hides_no_change(answers: tuple[PeerAnswer, ...], leader: str | None) -> None:
    """Same members, one leader at most, nothing older: else the topic is read."""
    found = judged(*answers)
    assert (found and found.leader) == (at(leader) if leader is not None else None)


def test_leader_and_follower_change_places() -> None:
    """The one of before is a follower now, so that nobody is lost."""
    found = judged(*(says(name, "b", 6) for name in "abc"))
    assert found is not None
    assert (found.version, found.followers) == ((6, 0, "b"), (at("a"), at("c")))


@pytest.mark.parametrize(
    ("zones", "down", "asked"),
    [
        (("w", "e", "w"), (), "ac"),
        (("e", "e", "e"), (), "abc"),
        (("w", "e", "w"), ("c",), ""),
        (("w", "e", "w"), ("b",), "ac"),
    ],
)
def test_those_of_this_zone_are_asked(zones: tuple[str, ...], down: tuple[str, ...], asked: str) -> None:
    """Else all; nobody if one of them does not answer, for then the word of the others is not enough."""
    a, b, c = (at(name, zone) for name, zone in zip("abc", zones, strict=True))
    known = led_by("a", 5)._replace(leader=a, followers=(b, c))
    found = whom_to_ask(known, "w", [each for each in (a, b, c) if each.instance in down])
    assert "".join(each.instance for each in found) == asked


@pytest.mark.parametrize(
    "known", [KNOWN._replace(gone=True), KNOWN._replace(leader=None), KNOWN._replace(leader=Replica("a:1"))]
)
def test_nobody_is_asked_of_an_entry_that_peers_cannot_prove(known: Location) -> None:
    """One without a leader, that withdrew, or whose instance has no name."""
    assert whom_to_ask(known, "") == ()
    assert judge(known, (), {}).location is None
