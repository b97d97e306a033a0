"""``freshet swap``: moves the readers of a keyspace from one group of consumers to another, and back."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from freshet.keyspaces import explain_unknown_keyspace
from freshet.owners import owner_connection
from freshet.settings import Settings, load_settings
from tokens.errors import FreshetError

if TYPE_CHECKING:
    from stream.kafka.locations import Announcement, LocationsReader
    from stream.kafka.topics import Topic

ERA_BITS = 32
"""As in `consumers.process.announcing`: a new era is above all generations of the group before."""
MOVED_TIMEOUT_S = 30.0


class SwapError(FreshetError):
    """The readers stay where they are."""

    code = "swap_refused"


def command(
    keyspace: Annotated[str, typer.Argument(help="The keyspace whose readers move.")],
    to: Annotated[
        list[str], typer.Option(help="Address of a consumer that takes them; repeat it for more.", metavar="HOST:PORT")
    ],
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's address, host:port.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Move the readers of a keyspace to other consumers, which have caught up (docs/operating/upgrading.md).

    The consumers that they leave go on folding, so the same command with their addresses moves the readers back.
    """
    settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}})
    count, before = move_readers(settings, keyspace, to)
    if as_json:
        typer.echo(json.dumps({"keyspace": keyspace, "partitions": count, "to": to, "before": before}))
    else:
        back = f"; back: freshet swap {keyspace} " + " ".join(f"--to {each}" for each in before) if before else ""
        typer.echo(f"moved {count} partitions of {keyspace} to {', '.join(to)}{back}")


def move_readers(
    settings: Settings, keyspace: str, to: list[str], partition: int | None = None
) -> tuple[int, list[str]]:
    """Moves the readers of a keyspace, or of one of its partitions, and waits until the topic says so.

    Returns how many partitions, and who had them. Raises `SwapError`.
    """
    from stream.kafka.locations import LocationsReader, announce
    from stream.kafka.topics import describe_topic, events_topic

    kafka = settings.kafka.cluster
    with explain_unknown_keyspace(settings, keyspace), LocationsReader(kafka) as reader:
        topic = describe_topic(kafka, events_topic(kafka, keyspace))
        wanted = set(range(topic.partitions)) if partition is None else {partition}
        standing = [each for each in reader.owners(keyspace).values() if each.partition in wanted]
        taken = [each for address in to for each in _taken(settings, keyspace, topic, address, reader, wanted)]
        missing = wanted - {each.partition for each in taken}
        if missing:
            raise SwapError(
                f"the consumers at {', '.join(to)} do not own the partitions {sorted(missing)} of {keyspace}",
                hint="give the addresses of all consumers of the other group (--to)"
                if partition is None
                else "name one that has it, of another group: `freshet cluster status` shows the followers",
            )
        if len(taken) > len(wanted):
            raise SwapError(
                f"several of the consumers at {', '.join(to)} own the same partitions of {keyspace}",
                hint="name the consumers of one group only",
            )
        announce(kafka, taken)
        deadline = time.monotonic() + MOVED_TIMEOUT_S
        while not all(_is_heard(reader.owner_of(keyspace, each.partition), each) for each in taken):
            if time.monotonic() > deadline:
                raise SwapError("the announcements were written and are not seen", hint="look at Kafka, and try again")
            time.sleep(0.02)
    return len(taken), sorted({each.address for each in standing} - {each.address for each in taken})


def _is_heard(found: Announcement | None, told: Announcement) -> bool:
    """Whether it stands, or its owner has already announced itself again, above it."""
    is_later = found is not None and found.instance == told.instance and found.generation > told.generation
    return found == told or is_later


def _taken(
    settings: Settings, keyspace: str, topic: Topic, address: str, reader: LocationsReader, wanted: set[int]
) -> list[Announcement]:
    """The announcements of what the consumer at ``address`` owns of the ``wanted`` partitions, above those that stand.

    Raises `SwapError`.
    """
    from stream.kafka.locations import Announcement

    with owner_connection(settings, address) as connection:
        status = connection.status(keyspace)
    found = []
    for each in status.partitions:
        if each.partition not in wanted:
            continue
        name = f"{keyspace}/{each.partition} at {address}"
        if each.topic_id != topic.topic_id:
            raise SwapError(
                f"{name} is of topic id {each.topic_id}, not {topic.topic_id}",
                hint="wait until it has seen the new topic",
            )
        if not each.ready:
            raise SwapError(
                f"{name} has not caught up: it is at {each.position} of {each.end}",
                hint=f"`freshet lag {keyspace} --owner {address}` shows how far it is",
            )
        known = reader.standing(keyspace, each.partition)
        era = (known.generation >> ERA_BITS) + 1 if known is not None else 1
        found.append(
            Announcement(
                keyspace=keyspace,
                partition=each.partition,
                address=address,
                instance=status.instance,
                layout=each.layout,
                topic_id=each.topic_id,
                started_at=int(time.time()),
                generation=era << ERA_BITS | 1,
                swap=known.swap + 1 if known is not None else 1,
            )
        )
    return found
