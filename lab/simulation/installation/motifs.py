"""Motifs: short sequences of ops that chance finds too seldom. None says what should come of it.

In most of them Kafka is away, so that the cache answers and stays behind what sessions see and write.
"""

from __future__ import annotations

from random import Random
from typing import Final

from lab.simulation.engine import Op
from lab.simulation.installation.parts import PROCESSES

_PUT, _DELETE, _ROLLBACK = 1, 0, 7
_TO_THE_END: Final = 3
_CLIENT: Final = len(PROCESSES)
_AT_COMMIT: Final = 1
_KAFKA_AWAY: Final[Op] = ("kafka", 1, 1)
_CAUGHT_UP: Final[Op] = ("let", 3)
_HAND_OVER: Final[Op] = ("session", 0, 1)


def _write(session: int, row: int, what: int = _PUT) -> Op:
    return ("write", session, row, what, _TO_THE_END)


def _read(session: int, row: int) -> Op:
    return ("read", session, row, 1, _TO_THE_END)


def _read_all(session: int) -> Op:
    return ("read", session, 0, 0, _TO_THE_END)


def motif(rng: Random) -> list[Op]:
    """One of them, with rows by chance."""
    one, other = 1, 0
    row, second, third, last = [*rng.sample(range(3), 3), 3]
    cached = [_write(other, second), _write(other, last), _CAUGHT_UP, _read(one, last)]
    broken: Op = ("break", _CLIENT, _AT_COMMIT, rng.randrange(3))
    return rng.choice(
        [
            # a batch that is newer than its last row, and then a row that the cache has only older
            [*cached, _KAFKA_AWAY, _write(other, second), _write(other, row), _read_all(one), _read(one, second)],
            # a row of the source, or its absence, and then one that the cache has only older
            [*cached, _KAFKA_AWAY, _write(other, second), _write(other, row), _read(one, row), _read(one, second)],
            [*cached, _write(other, row), _KAFKA_AWAY, _write(other, second), _read(one, third), _read(one, second)],
            # an absence that one owner knows, and a row that another one has only older
            [*cached, _write(other, second, _DELETE), _CAUGHT_UP, _read(one, second), _read_all(one)],
            # a commit whose end the session does not hear of, and what it reads then
            [*cached, _KAFKA_AWAY, broken, _write(one, last), _read(one, last)],
            [*cached, _KAFKA_AWAY, broken, _write(one, last), _write(one, row, _ROLLBACK), _read(one, last)],
            # a commit, and a read by a session that is handed the token, for the second time
            [*cached, _HAND_OVER, _KAFKA_AWAY, _write(one, last), _HAND_OVER, _read(other, last)],
        ]
    )
