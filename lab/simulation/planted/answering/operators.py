"""Planted bugs in what operators do with dead letters."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, installation, leave_out, never
from stream.kafka import dead_letters

LETTERS: Final = (
    installation(
        "letter_is_believed",
        "a message is put back that the topic does not have at the place that its letter names",
        Replace(dead_letters.retry, "'' if each.id in true else any_problem", "''"),
    ),
    installation(
        "letter_of_another_topic",
        "a message is put back into whatever topic its letter names",
        never(dead_letters._obstacle, "letter.topic != own"),
    ),
    installation(
        "letter_cut_short",
        "a message is put back of which a letter has only the beginning",
        never(dead_letters._obstacle, "not letter.is_complete"),
    ),
    installation(
        "marker_is_put_back",
        "a record that says how far a shard is is written again, behind newer ones",
        never(dead_letters._obstacle, "name in _ORDERED"),
    ),
    installation(
        "letter_outlives_its_message",
        "a letter whose message is put back stays unresolved",
        leave_out(dead_letters.retry, "for any_letter in any_good:\n    any_publisher.resolve(any_letter.id)"),
    ),
)
BUGS: Final = (*LETTERS,)
