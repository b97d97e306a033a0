"""A pool of sessions to a source."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from stream.sources.mariadb.connection import MariaDBUnreachable
from stream.sources.sessions import Sessions, SourceBusy


def test_a_session_that_is_in_use_when_its_pool_is_closed_ends_with_its_work() -> None:
    """Nobody would end it later: the server has a place for it until the process ends."""
    ended: list[str] = []
    pool = Sessions("s", lambda: "one", ended.append, lambda *_: nullcontext(), MariaDBUnreachable, 1, 1.0, 5.0)

    def work(_: str, __: float) -> int:
        pool.close()
        assert not ended
        return 7

    assert pool.run(None, work) == 7
    assert ended == ["one"]
    with pytest.raises(SourceBusy):
        pool.run(None, work)


def test_after_a_session_that_was_lost_no_other_of_its_time_is_used() -> None:
    """A restart of the server has ended all of them: each would cost a read of its own."""
    made: list[str] = []
    ended: list[str] = []

    def connect() -> str:
        made.append(f"session {len(made)}")
        return made[-1]

    pool = Sessions("s", connect, ended.append, lambda *_: nullcontext(), MariaDBUnreachable, 2, 1.0, 5.0)
    assert pool.run(None, lambda one, _: pool.run(None, lambda other, __: [one, other])) == made

    def work(session: str, _: float) -> str:
        if session in ("session 0", "session 1"):
            raise MariaDBUnreachable("the server has restarted")
        return session

    assert pool.run(None, work) == "session 2"
    assert sorted(ended) == ["session 0", "session 1"]
