"""``freshet up``: all sources, the consumer and the front of the settings in one terminal."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Final, TypeAlias

import typer

from freshet.commands.get import front_url
from freshet.settings import Settings, config_in_use, load_settings, use_config
from freshet.settings_errors import SettingsError
from freshet.signals import stopping_on_signals
from freshet.together.alone import alone
from freshet.together.parts import Part, parts_of
from freshet.together.running import Together
from freshet.together.watching import Watch
from tokens.errors import FreshetError

OWN: Final = "up"
"""The prefix of lines that no part has written."""
COLOURS: Final = (36, 33, 35, 32, 34)
LOOK_S: Final = 1.0
"""How often it looks whether its servers run."""
START_AGAIN_S: Final = 3.0
"""How long it waits after a server could not be started again. One that was killed keeps its port for a moment."""

Say: TypeAlias = Callable[[str], None]


def command(
    local: Annotated[
        bool, typer.Option("--local", help="Start a Kafka and a MariaDB on this machine too, and end them again.")
    ] = False,
    keyspaces: Annotated[
        list[str] | None, typer.Option("--keyspace", help="Only this keyspace; repeatable. Default: all.")
    ] = None,
    workers: Annotated[str | None, typer.Option(help="Processes that share the consumer's work, or auto.")] = None,
    port: Annotated[int | None, typer.Option(help="The front's port; 0: any free one.", min=0, max=65535)] = None,
) -> None:
    """Run everything of the settings in this terminal: sources, consumer and front. Ctrl-C ends it all.

    Each line has the name of the part that wrote it. A source that ends is started again, while the other keyspaces go
    on, and so is a server of --local. If the consumer or the front can't start, all ends. A second Ctrl-C kills what
    has not ended yet.
    """
    settings = load_settings(flags={"consumer": {"workers": workers}})  # what can't be is told before anything starts
    if not local:
        _parts(settings, keyspaces or [], workers, port)  # wrong use is told before a directory is made
        with alone(settings.data_dir):
            _run(settings, keyspaces or [], workers, port)
        return
    from freshet.commands.local import settings_file

    own = settings_file()
    used = config_in_use()
    if used.exists() and used.resolve() != own.resolve():
        raise SettingsError(
            f"{used} names its own servers, so --local has nothing to start",
            hint="leave out --local, or go to a directory without a settings file",
        )
    with alone(settings.data_dir), _local_servers() as servers:
        use_config(own)
        _run(load_settings(), keyspaces or [], workers, port, servers)


class LocalServers:
    """A Kafka and a MariaDB that run as long as this does. One that ends by itself is started again."""

    def __init__(self) -> None:
        self._front_port: int | None = None
        self._started: set[str] = set()
        self._look_at = 0.0

    def start(self) -> None:
        """Starts those that don't run. Raises `LocalServerError`."""
        from freshet.commands.local import USUAL

        print(f"{OWN} | starting {' and '.join(USUAL)}; the first time they are downloaded", file=sys.stderr)
        self._start(dict.fromkeys(USUAL), lambda line: print(f"{OWN} | {line}", file=sys.stderr))

    def note_front(self, port: int) -> None:
        """Has the settings say where the front listens, which is not where they said, whatever is started again."""
        from freshet.commands.local import note_front

        self._front_port = port
        note_front(port)

    def tend(self, say: Say) -> None:
        """Starts again what has ended by itself. To be called often; it may take as long as a start."""
        from freshet.commands.local import ended_servers

        if time.monotonic() < self._look_at:
            return
        wait_s = LOOK_S
        try:
            if ended := ended_servers():
                say(f"{' and '.join(ended)} ended; starting again on the same data")
                self._start(ended, say)
                if self._front_port is not None:
                    self.note_front(self._front_port)
        except FreshetError as error:
            wait_s = START_AGAIN_S
            say(f"{error}; trying again in {wait_s:.0f} s")
        self._look_at = time.monotonic() + wait_s

    def end(self) -> None:
        """Ends those that it has started."""
        from freshet.commands.local import stop_servers

        if self._started:
            with stopping_on_signals(lambda: None):  # it ends by itself, soon
                stop_servers(sorted(self._started))

    def _start(self, names: Mapping[str, int | None], say: Say) -> None:
        """``names``: with the port that each must have, if others know it by that."""
        from freshet.commands.local import start_servers

        servers, started = start_servers([*names], names, detached=False)
        self._started.update(started)
        for server in servers:
            if server.name in names:
                say(f"{server.name} at {server.address}; log: {server.log}")


@contextmanager
def _local_servers() -> Iterator[LocalServers]:
    servers = LocalServers()
    try:
        servers.start()
        yield servers
    finally:
        servers.end()


def _parts(settings: Settings, keyspaces: list[str], workers: str | None, port: int | None) -> list[Part]:
    """As `parts_of`. Raises for a front that may not listen, too."""
    from serving.http.server import check_front
    from stream.access.grants import Access

    serve = settings.serve
    check_front(serve.host, Access(serve.credentials), serve.tls.files, plain=serve.plain)
    return parts_of(settings, keyspaces, workers, port)


def _run(
    settings: Settings,
    keyspaces: list[str],
    workers: str | None,
    port: int | None,
    servers: LocalServers | None = None,
) -> None:
    from freshet.local.process import free_ports, port_is_free

    host, chosen = settings.serve.host, settings.serve.port if port is None else port
    chosen = chosen or free_ports(1)[0]
    parts = _parts(settings, keyspaces, workers, chosen)
    if not port_is_free(chosen, host):  # or one of another directory would take the sources from who listens there
        hint = "is `freshet up` running already? Else end what listens there, or choose another port with --port"
        raise SettingsError(f"cannot listen on {host}:{chosen}", hint=hint, code="cannot_listen")
    say = _printer(parts)
    if servers is not None and port is not None:
        servers.note_front(chosen)
    url = front_url(settings, chosen)
    wanted = keyspaces or list(settings.keyspaces)
    watch = Watch(
        url, settings.front_secret or "", lambda line: say(OWN, line), wanted, settings.client.tls.files.client()
    )

    def tend() -> None:
        if servers is not None:
            servers.tend(lambda line: say(OWN, line))

    together = Together(parts, _options(), say, tend=tend)
    with stopping_on_signals(together.stop):
        watch.start()
        try:
            together.run()
        finally:
            watch.end()
    say(OWN, "stopped")


def _options() -> list[str]:
    """Those of ``freshet`` itself that its parts get, too."""
    from freshet import logs

    form, _ = logs.configured
    shown = "console" if form == "auto" and sys.stderr.isatty() else form
    used = config_in_use()
    return [*(["--config", str(used)] if used.exists() else []), "--log-format", shown]


def _printer(parts: list[Part]) -> Callable[[str, str], None]:
    """Prints a line with the name of its part, in a colour of its own on a terminal."""
    names = [OWN, *(part.name for part in parts)]
    width = max(map(len, names))
    lock = threading.Lock()
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ

    def say(name: str, line: str) -> None:
        prefix = f"{name:<{width}} |"
        if coloured:
            prefix = f"\x1b[{COLOURS[names.index(name) % len(COLOURS)]}m{prefix}\x1b[0m"
        with lock, suppress(OSError):  # a full disk, or a reader that is gone, ends nothing
            print(prefix, line, file=sys.stderr, flush=True)

    return say
