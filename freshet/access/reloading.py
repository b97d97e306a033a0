"""Credentials that can be changed while a process runs: the settings are read again when a file of theirs changes.

Only who may ask, and what we show to others, is taken over; the rest of the settings needs a restart. Settings that
can't be read change nothing, and the log says why: a rotation must not lock everybody out.
"""

from __future__ import annotations

import contextvars
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Final, Self

import structlog

from freshet.sections.secrets import read_files
from freshet.settings import Settings, config_in_use, load_settings, use_config
from stream.access.audit import DONE, Audit
from stream.access.files import Signature, signature_of
from stream.access.grants import Access, Credential
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

LOOK_S: Final = 1.0
"""How often the files are looked at."""
_KEPT: Final = "credentials can't be read again; those of before go on"


class Reloader:
    """Calls ``renew`` with new settings after a file of them has changed, or after SIGHUP. A context manager."""

    def __init__(self, renew: Callable[[Settings], None], *, look_s: float = LOOK_S) -> None:
        self._renew, self._look_s = renew, look_s
        self._wanted: SimpleQueue[None] = SimpleQueue()  # an event's `set` may not interrupt itself
        self._stopping = False
        self._seen = _signature()
        run = contextvars.copy_context().run  # which file is used is a variable of the context
        self._thread = threading.Thread(target=run, args=(self._run,), name="reloading", daemon=True)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, lambda *_: self._wanted.put(None))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._wanted.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_first = True  # what has changed since the process read its settings
        while not self._stopping:
            is_asked = is_first or self._is_asked()
            now = _signature()
            if self._stopping or (now == self._seen and not is_asked):
                continue
            self._seen = now
            try:
                # No new signature after this: what was changed meanwhile would pass as seen.
                self._renew(load_settings())
                if not is_first:
                    log.info("credentials read again")
            except FreshetError as error:
                log.warning(_KEPT, code=error.code, reason=str(error), hint=error.hint)
            except OSError as error:  # a folder that may not be read now: the next change must still be seen
                log.warning(_KEPT, reason=str(error))
            is_first = False

    def _is_asked(self) -> bool:
        """Within ``look_s``."""
        try:
            self._wanted.get(timeout=self._look_s)
        except Empty:
            return False
        while not self._wanted.empty():
            self._wanted.get()
        return True


def _signature() -> Signature:
    return signature_of(sorted({config_in_use(), *read_files}))


def front_access(settings: Settings) -> Access:
    """Who may ask the front. Warns of the one secret that may do everything."""
    if settings.serve.bearer_token is not None:
        log.warning(
            "serve.bearer_token may do everything; give each reader a token of its own",
            hint="freshet token new, then [serve.tokens.NAME]",
        )
    return Access(settings.serve.credentials, names=settings.serve.hosts)


def owner_access(settings: Settings) -> Access:
    """Who may ask the owners here."""
    return Access(settings.consumer.credentials)


def following_owner_access(config: Path, access: Access) -> Reloader:
    """Keeps ``access`` as the settings say, in a process that may be a worker's: ``config`` is read from now on."""
    use_config(config if config.exists() else None)
    return Reloader(lambda now: renewed(access, now.consumer.credentials, "owner"))


def renewed(access: Access, credentials: Iterable[Credential], door: str) -> None:
    """As `Access.renew`, with a line of the audit where something has changed. Raises `AccessRefused`."""
    before = set(access.credentials)
    access.renew(credentials)
    changed = before ^ set(access.credentials)
    if changed:
        names = ", ".join(sorted({each.grant.name for each in changed}))
        Audit(door).note("settings", f"tokens changed: {names}", "", DONE)
