"""An application that writes to a MySQL through a tracked connection, and must be told of each commit of its own.

What it was told is compared with what the server has committed in its session. Where that can't be known, the
connection has to say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pymysql.constants import CLIENT

from lab.simulation.connectors.judging import position_of
from serving.client.errors import WriteNotTracked
from serving.client.tracked_mysql import MysqlTrackedConnection, is_mysql

OWN_WRITES: Final = "read your writes"
Statement = tuple[str, tuple[object, ...]]
Complain = Callable[[str, str], None]


def _by_statement(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("COMMIT")


def _by_the_next(connection: Any) -> None:
    connection.begin()
    connection.rollback()


ENDS: Final[Sequence[Callable[[Any], None]]] = (
    lambda connection: connection.commit(),
    _by_statement,
    lambda connection: connection.autocommit(True),
    _by_the_next,
)
"""Each way to commit."""


def write(inner: Any, statements: Sequence[Statement], way: int, complain: Complain, *, commits: bool) -> None:
    """Writes a transaction over a connection of PyMySQL's. ``way``: how it is committed, or each statement by itself.

    Raises PyMySQL's errors.
    """
    if not is_mysql(inner):
        complain(OWN_WRITES, "a connection to MySQL is taken for one to MariaDB")
    heard: list[str] = []
    connection = MysqlTrackedConnection(inner, heard.append)
    session = inner._sock._connection.session  # the server's: what it has committed is the truth
    ends = way % (len(ENDS) + 1)
    try:
        if ends == len(ENDS):
            connection.autocommit(True)
        with connection.cursor() as cursor:
            for sql, values in statements:
                cursor.execute(sql, values)
        if commits and ends < len(ENDS):
            ENDS[ends](connection)
        connection.close()
    finally:
        _judge(connection, heard, session.variables.commits, complain)


def _judge(
    connection: MysqlTrackedConnection, heard: Sequence[str], committed: Sequence[int], complain: Complain
) -> None:
    try:
        connection.require_settled()
    except WriteNotTracked:
        return
    known = {number for gtids in heard for number in position_of(f"MySQL56/{gtids}")}
    if unheard := sorted({*committed} - known):
        complain(OWN_WRITES, f"a session is not told that it has committed {unheard}, but of {heard or 'nothing'}")


def flags(way: int) -> int:
    """Of every other connection: whether the server is asked to tell what is committed."""
    return CLIENT.SESSION_TRACK if way // 2 % 2 else 0
