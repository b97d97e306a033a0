"""Credentials that can be changed while a process runs: the settings are read again when a file of theirs changes.

Only who may ask, and what we show to others, is taken over; the rest of the settings needs a restart. Settings that
can't be read change nothing, and the log says why: a rotation must not lock everybody out.
"""

from __future__ import annotations

import contextvars
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog

from freshet.sections.secrets import read_files
from freshet.settings import Settings, config_in_use, load_settings, use_config
from stream.access.grants import Access, Credential
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
"""How often the files are looked at."""
_Signature = tuple[tuple[int, int, int], ...]


class Reloader:
    """Calls ``renew`` with new settings after a file of them has changed, or after SIGHUP. A context manager."""

    def __init__(self, renew: Callable[[Settings], None], *, look_s: float = LOOK_S) -> None:
        self._renew, self._look_s = renew, look_s
        self._wanted = threading.Event()
        self._stopping = False
        self._seen = _signature()
        run = contextvars.copy_context().run  # which file is used is a variable of the context
        self._thread = threading.Thread(target=run, args=(self._run,), name="reloading", daemon=True)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, lambda *_: self._wanted.set())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            is_asked = self._wanted.wait(self._look_s)
            self._wanted.clear()
            now = _signature()
            if self._stopping or (now == self._seen and not is_asked):
                continue
            self._seen = now
            try:
                self._renew(load_settings())
                self._seen = _signature()  # it may name other files now
                log.info("credentials read again")
            except FreshetError as error:
                log.warning(
                    "credentials can't be read again; those of before go on",
                    code=error.code,
                    reason=str(error),
                    hint=error.hint,
                )


def _signature() -> _Signature:
    found = []
    for path in sorted({config_in_use(), *read_files}):
        try:
            state = os.stat(path)
        except OSError:
            found.append((0, 0, 0))
        else:
            found.append((state.st_mtime_ns, state.st_size, state.st_ino))
    return tuple(found)


def front_access(settings: Settings) -> Access:
    """Who may ask the front. Warns of the one secret that may do everything."""
    if settings.serve.bearer_token is not None:
        log.warning(
            "serve.bearer_token may do everything; give each reader a token of its own",
            hint="freshet token new, then [serve.tokens.NAME]",
        )
    return Access(settings.serve.credentials)


def owner_access(settings: Settings) -> Access:
    """Who may ask the owners here."""
    return Access(_of_owner(settings))


def _of_owner(settings: Settings) -> list[Credential]:
    return settings.consumer.credentials


def follow_owner_access(config: Path, access: Access) -> None:
    """Keeps ``access`` as the settings say, until the process ends."""
    use_config(config if config.exists() else None)
    Reloader(lambda now: access.renew(_of_owner(now))).__enter__()
