"""``freshet local``: a real Kafka, MariaDB, MySQL and Hive Metastore as background processes on this machine."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from freshet.settings import load_settings
from freshet.signals import raise_deferred, signals_held

if TYPE_CHECKING:
    from freshet.local.kafka import KafkaServer
    from freshet.local.mariadb import MariaDBServer
    from freshet.local.state import ServerRecord

KAFKA_PORT, MARIADB_PORT, MYSQL_PORT, HIVE_PORT = 9092, 3306, 3307, 9083
DATABASE, CATALOG_DATABASE = "shop", "catalog_truth"
SERVERS = ("kafka", "mariadb", "mysql", "hive")
USUAL = ("kafka", "mariadb")
"""The servers that are started if none is named."""

HEADER = """\
# Written by `freshet local up`; used in this directory while there is no freshet.toml and these servers are up.
"""
KAFKA_SETTINGS = """\
[kafka]
bootstrap = "{bootstrap}"
"""
MARIADB_SETTINGS = """\
[keyspaces.shop.source]
kind = "mariadb"
host = "{host}"
port = {port}
user = "{user}"
password = "{password}"
databases = ["{database}"]
"""
MYSQL_SETTINGS = """\
[keyspaces.mysql.source]
kind = "mysql"
host = "{host}"
port = {port}
user = "{user}"
password = "{password}"
databases = ["{database}"]
"""
WORKLOAD_SETTINGS = """\
[keyspaces.hive]
kind = "catalog"

[keyspaces.hive.source]
kind = "workload"
host = "{host}"
port = {port}
user = "{user}"
password = "{password}"
database = "{catalog}"
"""
FRONT_SETTINGS = """
[serve]
port = {port}
"""
HIVE_SETTINGS = """\
[keyspaces.hive]
kind = "catalog"

[keyspaces.hive.source]
kind = "hive"
uris = ["{uri}"]
"""

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Start, stop and show real servers on this machine.",
)


@app.command()
def up(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="kafka|mariadb|mysql|hive", help="The servers to start.", show_default="kafka mariadb"),
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(help=f"Kafka's port (default: {KAFKA_PORT} if it is free, else any).", min=1, max=65535),
    ] = None,
    mariadb_port: Annotated[
        int | None, typer.Option(help=f"MariaDB's (default: {MARIADB_PORT} if it is free, else any).", min=1, max=65535)
    ] = None,
    mysql_port: Annotated[
        int | None, typer.Option(help=f"MySQL's (default: {MYSQL_PORT} if it is free, else any).", min=1, max=65535)
    ] = None,
    hive_port: Annotated[
        int | None,
        typer.Option(help=f"The metastore's (default: {HIVE_PORT} if it is free, else any).", min=1, max=65535),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start Kafka, MariaDB, MySQL or a Hive Metastore in the background and print their addresses.

    Servers that run already are left alone. The settings that it writes are for all that run.
    """
    ports = {"kafka": kafka_port, "mariadb": mariadb_port, "mysql": mysql_port, "hive": hive_port}
    servers, _ = start_servers(_wanted(names), ports)
    _show(servers, as_json)


def start_servers(
    wanted: Sequence[str] = USUAL, ports: Mapping[str, int | None] | None = None, *, detached: bool = True
) -> tuple[list[ServerRecord], list[str]]:
    """Starts those of ``wanted`` that don't run yet. Returns all that run, and the names of those it has started.

    ``detached``: they survive this process; else they are killed when it ends. Raises `LocalServerError`.
    """
    from freshet.local.cache import exclusive
    from freshet.local.state import read_state, write_state

    home, ports = _home(), ports or {}
    home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # stores will be beside it
    with exclusive(home / "lock"):
        servers, before = _running(home), {each.name: each for each in read_state(_state_file(home))}
        starters = {
            "kafka": lambda: _start_kafka(home, ports.get("kafka"), detached),
            "mariadb": lambda: _start_mariadb(home, ports.get("mariadb"), detached),
            "mysql": lambda: _start_mysql(home, ports.get("mysql"), detached),
            "hive": lambda: _start_hive(home, ports.get("hive"), detached),
        }
        missing = [name for name in SERVERS if name in wanted and name not in servers]
        started: dict[str, Future[ServerRecord]] = {}
        try:
            with _until_started(detached), ThreadPoolExecutor(len(starters)) as pool, signals_held():
                started.update((name, pool.submit(starters[name])) for name in missing)
        finally:  # also after a failure or Ctrl-C: `down` must find the servers that do run
            for name, future in started.items():
                if future.done() and future.exception() is None:
                    servers[name] = future.result()
                elif name in before:  # it has ended, and is still wanted: `ended_servers` tells it again
                    servers[name] = before[name]
            servers = {name: servers[name] for name in SERVERS if name in servers}
            write_state(_state_file(home), servers.values())
        for future in started.values():
            future.result()
        _write_settings(home, servers)
    return list(servers.values()), missing


def _until_started(detached: bool) -> AbstractContextManager[None]:
    """Holds signals: servers that survive this process must be written down. A third one ends it at once."""
    return signals_held(at_most=2) if detached else nullcontext()


@app.command()
def down(
    wipe: Annotated[bool, typer.Option("--wipe", help="Delete their data too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the servers that ``up`` started, and no other processes."""
    names = stop_servers(SERVERS)
    if wipe:
        for name in SERVERS:
            shutil.rmtree(_home() / name, ignore_errors=True)
    if as_json:
        typer.echo(json.dumps({"stopped": names, "wiped": wipe}))
    else:
        typer.echo(f"stopped: {', '.join(names)}" if names else "nothing was running")


def stop_servers(names: Sequence[str]) -> list[str]:
    """Stops and forgets those of the servers that ``up`` started. Returns the names of those that were running."""
    from freshet.local.cache import exclusive
    from freshet.local.state import read_state, write_state

    home = _home()
    with exclusive(home / "lock"):
        known = read_state(_state_file(home))
        servers = [server for server in known if server.name in names]
        with ThreadPoolExecutor(max(len(servers), 1)) as pool:
            stopped = list(pool.map(lambda server: server.stop(), servers))
        left = {server.name: server for server in known if server.name not in names and server.process() is not None}
        write_state(_state_file(home), left.values())
        if left:
            _write_settings(home, left)
        else:
            (home / "freshet.toml").unlink(missing_ok=True)
    return [server.name for server, was_running in zip(servers, stopped, strict=True) if was_running]


@app.command()
def sql(
    statement: Annotated[
        str | None, typer.Option("--execute", "-e", help="Run these statements and end, instead of asking for some.")
    ] = None,
    bare: Annotated[bool, typer.Option("--bare", help="With --execute: only the values, for a script.")] = False,
    database: Annotated[str, typer.Option(help="The database to begin in.")] = DATABASE,
) -> None:
    """Open the bundled SQL client on the local MariaDB, in the database of the keyspace `shop`."""
    from freshet.local.mariadb import PASSWORD, USER, MariaDBAddress, client_command

    running = _running(_home())
    if "mariadb" not in running:
        from freshet.local.errors import LocalServerError

        raise LocalServerError(
            "no MariaDB was started in this directory",
            hint="start one with `freshet up --local` or `freshet local up`, and call this in the same directory",
            code="not_started",
        )
    host, _, port = running["mariadb"].address.rpartition(":")
    command, environment = client_command(MariaDBAddress(host, int(port), USER, PASSWORD), database)
    if statement is not None:
        command += [*(["--batch", "--skip-column-names"] if bare else ["--table"]), f"--execute={statement}"]
    raise_deferred()
    os.execve(command[0], command, environment)


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show the servers that ``up`` started. Exit code 1 if one of them is not running."""
    from freshet.local.state import read_state

    servers = read_state(_state_file(_home()))
    _show(servers, as_json)
    if not servers or any(server.process() is None for server in servers):
        raise typer.Exit(1)


def _home() -> Path:
    return load_settings().data_dir.resolve() / "local"


def settings_file() -> Path:
    """Where the settings for the local servers are, while some run."""
    return _home() / "freshet.toml"


def note_front(port: int) -> None:
    """Say in the settings where the front listens, for other commands, until servers are started or stopped again."""
    with settings_file().open("a") as file:
        file.write(FRONT_SETTINGS.format(port=port))


def _running(home: Path) -> dict[str, ServerRecord]:
    """Name → each server that ``up`` started and that runs."""
    from freshet.local.state import read_state

    return {server.name: server for server in read_state(_state_file(home)) if server.process() is not None}


def ended_servers() -> dict[str, int]:
    """Name → port of the servers that ``up`` started and that run no more, though nobody has stopped them."""
    from freshet.local.cache import exclusive
    from freshet.local.state import read_state

    home = _home()

    def ended() -> dict[str, int]:
        left = [server for server in read_state(_state_file(home)) if server.process() is None]
        return {server.name: int(server.address.rpartition(":")[2]) for server in left}

    if not ended():
        return {}
    with exclusive(home / "lock"):  # `down` stops them before it says so
        return ended()


def _state_file(home: Path) -> Path:
    return home / "state.json"


def _start_kafka(home: Path, port: int | None, detached: bool) -> ServerRecord:
    from freshet.local.kafka import KafkaServer
    from freshet.local.state import record_of

    server: KafkaServer = KafkaServer(home / "kafka", port=port, detached=detached).start(KAFKA_PORT)
    return record_of("kafka", server.pid, server.bootstrap, server.data_dir, server.log_file)


def _start_mariadb(home: Path, port: int | None, detached: bool) -> ServerRecord:
    from freshet.local.mariadb import MariaDBServer
    from freshet.local.state import record_of

    server: MariaDBServer = MariaDBServer(home / "mariadb", port=port, detached=detached).start(MARIADB_PORT)
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for database in (DATABASE, CATALOG_DATABASE):
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {database} CHARACTER SET utf8mb4")
    return record_of("mariadb", server.pid, f"{server.host}:{server.port}", server.data_dir, server.log_file)


def _start_mysql(home: Path, port: int | None, detached: bool) -> ServerRecord:
    from freshet.local.mysql import MySQLServer
    from freshet.local.state import record_of

    server: MySQLServer = MySQLServer(home / "mysql", port=port, detached=detached).start(MYSQL_PORT)
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
    return record_of("mysql", server.pid, f"{server.host}:{server.port}", server.data_dir, server.log_file)


def _start_hive(home: Path, port: int | None, detached: bool) -> ServerRecord:
    from freshet.local.hive.server import HiveServer
    from freshet.local.state import record_of

    server: HiveServer = HiveServer(home / "hive", port=port, detached=detached).start(HIVE_PORT)
    return record_of("hive", server.pid, f"{server.host}:{server.port}", server.data_dir, server.log_file)


def _wanted(names: list[str] | None) -> tuple[str, ...]:
    """The servers to start. Raises `LocalServerError` ``unknown_server``."""
    from freshet.local.errors import LocalServerError

    unknown = [name for name in names or () if name not in SERVERS]
    if unknown:
        raise LocalServerError(
            f"there is no server {unknown[0]!r}", hint=f"name some of {', '.join(SERVERS)}", code="unknown_server"
        )
    return tuple(names or USUAL)


def _write_settings(home: Path, servers: dict[str, ServerRecord]) -> None:
    from freshet.local.mariadb import PASSWORD, USER

    parts = [HEADER]
    if "kafka" in servers:
        parts.append(KAFKA_SETTINGS.format(bootstrap=servers["kafka"].address))
    if "mariadb" in servers:
        host, _, port = servers["mariadb"].address.rpartition(":")
        account = {"host": host, "port": port, "user": USER, "password": PASSWORD}
        parts.append(MARIADB_SETTINGS.format(database=DATABASE, **account))
        if "hive" not in servers:
            parts.append(WORKLOAD_SETTINGS.format(catalog=CATALOG_DATABASE, **account))
    if "mysql" in servers:
        host, _, port = servers["mysql"].address.rpartition(":")
        parts.append(MYSQL_SETTINGS.format(host=host, port=port, user=USER, password=PASSWORD, database=DATABASE))
    if "hive" in servers:
        parts.append(HIVE_SETTINGS.format(uri=f"thrift://{servers['hive'].address}"))
    text = "\n".join(parts).replace(f"{HEADER}\n", HEADER)
    path = home / "freshet.toml"
    path.touch(mode=0o600)
    path.write_text(text)


def _show(servers: list[ServerRecord], as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {
            "name": server.name,
            "running": server.process() is not None,
            "pid": server.pid,
            "address": server.address,
            "data_dir": server.data_dir,
            "log": server.log,
        }
        for server in servers
    ]
    settings = _home() / "freshet.toml"
    if as_json:
        typer.echo(json.dumps({"servers": rows, "settings": str(settings) if settings.exists() else None}))
        return
    for row in rows:
        state = f"running, pid {row['pid']}" if row["running"] else "not running"
        typer.echo(f"{row['name']:<8} {row['address']:<22} {state}; log: {row['log']}")
    if not rows:
        typer.echo("nothing was started here; `freshet local up` starts Kafka and MariaDB")
    elif settings.exists():
        typer.echo(f"settings {settings}")
