"""The cooperative-sticky assignor: who reads what, moving as little as possible (KIP-429)."""

from __future__ import annotations

from collections.abc import Mapping, Set

Place = tuple[str, int]


def assign(
    wants: Mapping[str, Set[str]], owned: Mapping[str, Set[Place]], partitions: Mapping[str, int]
) -> dict[str, set[Place]]:
    """Member → its partitions. ``wants``: member → topics. ``owned``: what each has now. ``partitions``: of a topic.

    A partition that moves to another member is given to nobody at first: its owner must give it up before.
    """
    target = _balanced(wants, owned, partitions)
    holder = {place: member for member, places in owned.items() for place in places}
    return {
        member: {place for place in places if holder.get(place, member) == member} for member, places in target.items()
    }


def _balanced(
    wants: Mapping[str, Set[str]], owned: Mapping[str, Set[Place]], partitions: Mapping[str, int]
) -> dict[str, set[Place]]:
    free = {(topic, number) for topics in wants.values() for topic in topics for number in range(partitions[topic])}
    target: dict[str, set[Place]] = {}
    for member in sorted(wants):
        target[member] = {place for place in owned.get(member, ()) if place in free and place[0] in wants[member]}
        free -= target[member]
    for place in sorted(free):
        fewest = min((each for each in target if place[0] in wants[each]), key=lambda each: (len(target[each]), each))
        target[fewest].add(place)
    while move := _move(wants, target):
        place, giver, taker = move
        target[giver].remove(place)
        target[taker].add(place)
    return target


def _move(wants: Mapping[str, Set[str]], target: Mapping[str, Set[Place]]) -> tuple[Place, str, str] | None:
    """A move that makes the assignment more even, if there is one."""
    order = sorted(target, key=lambda each: (len(target[each]), each))
    for taker in order:
        for giver in reversed(order):
            if len(target[giver]) < len(target[taker]) + 2:
                break
            for place in sorted(target[giver], reverse=True):
                if place[0] in wants[taker]:
                    return place, giver, taker
    return None
