"""A writer for each driver and framework whose connections are tracked: statements, committed when it returns."""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, TypeAlias

import pytest

from freshet.local.mariadb import MariaDBAddress
from serving.client.sessions import track, track_async
from serving.client.sessions.django import track_database
from serving.client.sessions.sqlalchemy import track_engine
from tests.servers.choice import used
from tests.servers.mysqlclient import mysqlclient

Write: TypeAlias = Callable[..., Awaitable[None]]
"""Runs statements in one transaction of one pooled or kept connection."""


@contextmanager
def pymysql_writer(server: MariaDBAddress, database: str, shard: str) -> Iterator[Write]:
    """PyMySQL, in explicit transactions."""
    yield from _blocking(track(server.connect(database=database), shard))


@contextmanager
def mysqlclient_writer(server: MariaDBAddress, database: str, shard: str) -> Iterator[Write]:
    """mysqlclient, whose connections and cursors are C."""
    driver = mysqlclient()
    if driver is None:
        pytest.skip(used["mysqlclient"])
    login = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
    yield from _blocking(track(driver.connect(**login, database=database), shard))


@contextmanager
def connector_writer(server: MariaDBAddress, database: str, shard: str) -> Iterator[Write]:
    """mysql-connector, whose cursors are not buffered."""
    yield from _blocking(track(_connector(server, database), shard))


@contextmanager
def connector_autocommit_writer(server: MariaDBAddress, database: str, shard: str) -> Iterator[Write]:
    """The same with autocommit, a property of its connections."""
    connection = track(_connector(server, database), shard)
    connection.autocommit = True
    yield from _blocking(connection, commits=False)


def _connector(server: MariaDBAddress, database: str) -> Any:
    import mysql.connector

    login = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
    return mysql.connector.connect(**login, database=database, use_pure=True)


def _blocking(connection: Any, *, commits: bool = True) -> Iterator[Write]:
    async def write(*statements: str) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                if cursor.description:
                    cursor.fetchall()
        if commits:
            connection.commit()

    yield write
    connection.close()


@contextmanager
def aiomysql_writer(server: MariaDBAddress, database: str, shard: str) -> Iterator[Write]:
    """aiomysql, whose pool gives a connection for each transaction."""
    import aiomysql

    yield from _pooled(aiomysql.create_pool, server, database, shard)


@contextmanager
def asyncmy_writer(server: MariaDBAddress, database: str, shard: str) -> Iterator[Write]:
    """asyncmy, as aiomysql."""
    import asyncmy

    yield from _pooled(asyncmy.create_pool, server, database, shard)


def _pooled(create: Callable[..., Any], server: MariaDBAddress, database: str, shard: str) -> Iterator[Write]:
    pools: list[Any] = []

    async def write(*statements: str) -> None:
        if not pools:
            login = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
            pools.append(await create(**login, db=database, maxsize=2))
        async with pools[0].acquire() as connection:
            tracked = track_async(connection, shard)
            async with tracked.cursor() as cursor:
                for statement in statements:
                    await cursor.execute(statement)
            await tracked.commit()

    async def close() -> None:
        for pool in pools:
            pool.close()
            await pool.wait_closed()

    write.close = close  # type: ignore[attr-defined]
    yield write


def _url(server: MariaDBAddress, database: str, driver: str) -> Any:
    from sqlalchemy import URL

    return URL.create(f"mariadb+{driver}", server.user, server.password, server.host, server.port, database)


@contextmanager
def sqlalchemy_writer(server: MariaDBAddress, database: str, shard: str) -> Iterator[Write]:
    """SQLAlchemy over PyMySQL; its pool had opened a connection before the engine was tracked."""
    from sqlalchemy import create_engine, text

    engine = create_engine(_url(server, database, "pymysql"), pool_pre_ping=True)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    track_engine(engine, shard)

    async def write(*statements: str) -> None:
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    yield write
    engine.dispose()


def _async_engine(server: MariaDBAddress, database: str, shard: str, driver: str) -> Iterator[Write]:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine

    engine = create_async_engine(_url(server, database, driver))
    track_engine(engine, shard)

    async def write(*statements: str) -> None:
        async with engine.begin() as connection:
            for statement in statements:
                await connection.execute(text(statement))

    write.close = engine.dispose  # type: ignore[attr-defined]
    yield write


@contextmanager
def async_engine_writer(server: MariaDBAddress, database: str, shard: str) -> Iterator[Write]:
    """SQLAlchemy's asynchronous engine over aiomysql."""
    yield from _async_engine(server, database, shard, "aiomysql")


@contextmanager
def async_engine_asyncmy_writer(server: MariaDBAddress, database: str, shard: str) -> Iterator[Write]:
    """The same over asyncmy."""
    yield from _async_engine(server, database, shard, "asyncmy")


def _put_pymysql_in_its_place() -> None:
    import pymysql

    pymysql.version_info = (2, 2, 4, "final", 0)  # Django asks for that of mysqlclient, whose place PyMySQL takes
    pymysql.install_as_MySQLdb()
    for name in ("constants", "constants.CLIENT", "constants.FIELD_TYPE", "converters", "err"):
        # else they would be loaded again under these names, and pymysql.err would be another one than other tests have
        sys.modules[f"MySQLdb.{name}"] = importlib.import_module(f"pymysql.{name}")


@contextmanager
def django_writer(server: MariaDBAddress, database: str, shard: str) -> Iterator[Write]:
    """Django, in atomic blocks, over mysqlclient if that can be had, else over PyMySQL.

    Its settings are the process's: each call adds an alias.
    """
    import django
    from asgiref.sync import sync_to_async
    from django.conf import settings
    from django.db import connections, transaction

    if mysqlclient() is None:
        _put_pymysql_in_its_place()
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()

    login = {"HOST": server.host, "PORT": server.port, "USER": server.user, "PASSWORD": server.password}
    connections.settings[database] = connections.configure_settings(
        {"default": {}, database: {"ENGINE": "django.db.backends.mysql", "NAME": database, **login}}
    )[database]
    track_database(database, shard)

    @sync_to_async  # all in one thread, to which the connection belongs
    def write(*statements: str) -> None:
        with transaction.atomic(using=database), connections[database].cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    async def writing(*statements: str) -> None:
        await write(*statements)

    @sync_to_async
    def close() -> None:
        connections[database].close()

    writing.close = close  # type: ignore[attr-defined]
    yield writing


WRITERS: Final = {
    "PyMySQL": pymysql_writer,
    "mysqlclient": mysqlclient_writer,
    "mysql-connector": connector_writer,
    "mysql-connector, autocommit": connector_autocommit_writer,
    "aiomysql": aiomysql_writer,
    "asyncmy": asyncmy_writer,
    "SQLAlchemy": sqlalchemy_writer,
    "SQLAlchemy, aiomysql": async_engine_writer,
    "SQLAlchemy, asyncmy": async_engine_asyncmy_writer,
    "Django": django_writer,
}


def run(body: Callable[[Write], Awaitable[None]], kind: str, server: MariaDBAddress, database: str, shard: str) -> None:
    """Runs ``body`` with a writer, which is closed in the event loop that it was used in."""

    async def main(write: Write) -> None:
        try:
            await body(write)
        finally:
            if close := getattr(write, "close", None):
                await close()

    with ExitStack() as stack:
        asyncio.run(main(stack.enter_context(WRITERS[kind](server, database, shard))))
