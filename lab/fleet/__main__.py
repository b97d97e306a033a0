"""``python -m lab.fleet``: routes of a front before and after a third of a fleet is lost, with the topic and without.

Prints one JSON object: figures of docs/internals/locations.md. Time is virtual but for the look-ups.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import tracemalloc
from typing import Any, Final

from lab.fleet.observing import NOTICED_S, STEP_S, Fleet, Front, replica
from serving.locations.cache import LocationCache, Report
from serving.locations.errors import LocationError
from serving.locations.places import Key, Kind, Location, Origin, Priority, Replica, Version
from serving.locations.queues import Queues

LOOKUPS: Final = 300_000
SETTLED_S_MAX: Final = 600.0
FEW: Final = 400_000
INSTANCES: Final = 1_000


def measure(instances: int, partitions: int, rate: int, *, watch: bool, seed: int) -> dict[str, Any]:
    """One front, warm, for ten minutes; then a third of the instances is lost; then until reads meet owners again."""
    fleet = Fleet(instances, partitions, random.Random(seed))
    front = Front(fleet, rate, max(partitions // 100, 1), watch=watch)
    if watch:
        front.learn_all()
    quiet_s = 120.0
    _, cold = front.run(quiet_s)
    before = front.batches
    lost = fleet.lose(1 / 3)
    during, _ = front.run(NOTICED_S)
    fleet.give_away(lost)
    front.told(lost)
    after, settled_s = 1.0, 0.0
    while after > 0.001 and settled_s < SETTLED_S_MAX:
        after, _ = front.run(1.0)
        settled_s += 1.0
    return {
        "follows the topic": watch,
        "locations known": len(front.cache),
        f"batches in the first {quiet_s:.0f} s": before,
        "share of reads of unknown partitions in that time": round(cold, 4),
        "share led to lost owners until the groups notice the loss": round(during, 4),
        "batches from the loss on": front.batches - before,
        "most batches in a second": front.most_a_second,
        "seconds until 99.9 % of reads are not led astray": settled_s,
        "entries that are wrong then": front.wrong(),
    }


def costs(instances: int, partitions: int) -> dict[str, Any]:
    """Bytes of a location, and look-ups a second of this machine's core, of processor time."""
    fleet = Fleet(instances, partitions, random.Random(1))
    tracemalloc.start()
    front = Front(fleet, 0, 1, watch=True)
    front.learn_all()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    keys: list[Key] = [fleet.key(front.fleet.rng.randrange(partitions)) for _ in range(LOOKUPS)]
    began, find = time.process_time(), front.cache.nonblock_get_leader
    for key in keys:
        find(key, 1.0)
    took_s = time.process_time() - began
    return {
        "locations": partitions,
        "bytes a location": round(size / partitions),
        "look-ups a second": round(LOOKUPS / took_s),
        "microseconds a look-up": round(took_s / LOOKUPS * 1e6, 2),
    }


def reported(partitions: int) -> dict[str, Any]:
    """What one report does to a front that knows so many partitions: batches that it needs, and who is still told."""
    cache, now = LocationCache(), 100.0
    for number in range(partitions):
        led = Location(Key("shop", number), Version(1, 0, f"i{number % INSTANCES}"), replica(number % INSTANCES))
        cache.install(led, Origin.PUSH, now, now)
    key, hint = Key("shop", 0), Location(Key("shop", 0), Version(2, 0, "i1"), replica(1))
    cache.report(key, replica(0), Version(1, 0, "i0"), Report.MOVED, now, [hint])
    found = {"a leader that moved, with a hint: batches": 0}
    while cache.next_batch(now) is not None:
        found["a leader that moved, with a hint: batches"] += 1
    assert cache.nonblock_get_leader(key, now) == replica(1)
    dead = replica(5)
    cache.report(Key("shop", 5), dead, Version(1, 0, "i5"), Report.UNREACHABLE, now)
    found["an instance that does not answer: partitions it had"] = len(range(5, partitions, INSTANCES))
    found["of them, still led to it after one report"] = sum(
        _told(cache, number, now) == dead for number in range(5, partitions, INSTANCES)
    )
    return found


def _told(cache: LocationCache, number: int, now: float) -> Replica | None:
    try:
        return cache.nonblock_get_leader(Key("shop", number), now)
    except LocationError:
        return None


def cold(partitions: int) -> dict[str, Any]:
    """Partitions of one keyspace that are all read at once by a front that knows none: batches, and virtual seconds."""
    cache, now, batches = LocationCache(), 0.0, 0
    for number in range(partitions):
        cache.nonblock_renew(Key("shop", number), now)
    while len(cache.queues):
        while (batch := cache.next_batch(now)) is not None:
            batches += 1
            found = {key: Location(key, Version(1), replica(key.partition % INSTANCES)) for key in batch.keys}
            cache.finish(batch, {key: (each, Origin.TOPIC) for key, each in found.items()}, now)
        now += STEP_S
    return {"cold partitions": partitions, "batches for them": batches, "seconds for them, by the cap": round(now, 1)}


def hurried(partitions: int) -> dict[str, Any]:
    """A key of the system, asked for while so many partitions wait: processor time until it is taken, and its place."""
    queues = Queues()
    for number in range(partitions):
        queues.put(Key("shop", number), Priority.PARTITION, 0.0)
    root, began = Key("", 0, Kind.LOCATIONS), time.process_time()
    queues.put(root, root.priority, 1.0)
    taken = queues.take(1.0, lambda _: True)
    took_s = time.process_time() - began
    assert taken is not None
    return {
        "partitions that wait": partitions,
        "a key of the system goes first": taken.keys == (root,),
        "microseconds until it is taken": round(took_s * 1e6, 1),
    }


def main() -> None:
    """Reads the flags, prints the figures."""
    parser = argparse.ArgumentParser(prog="python -m lab.fleet", description=__doc__)
    parser.add_argument("--instances", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=2_000, help="reads a second of the front")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    size = chosen.instances, chosen.partitions
    runs = [measure(*size, chosen.rate, watch=watch, seed=chosen.seed) for watch in (True, False)]
    few = min(chosen.partitions, FEW)
    found = {"fronts": runs, "costs": costs(chosen.instances, few), "cold": cold(few), "reports": reported(few)}
    found["hurried"] = hurried(few // 2)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
