"""One ``freshet up`` for a directory of stores: a second one would take the sources from the first."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from consumers.store.errors import StoreError
from tokens.errors import FreshetError

LOCK_NAME: Final = "up.lock"


class AlreadyUp(FreshetError):
    """Another ``freshet up`` runs in this directory; code ``already_up``."""

    code = "already_up"


@contextmanager
def alone(data_dir: Path) -> Iterator[None]:
    """Holds ``data_dir``, made if new, for this process.

    Raises `AlreadyUp` if another one holds it, `StoreError` ``store_denied`` where there are no locks, ``OSError``.

    The kernel releases it when the process ends, in whatever way; processes that it starts don't hold it.
    """
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (data_dir / LOCK_NAME).open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyUp(
                f"another `freshet up` runs with the stores in {data_dir}",
                hint="use that one, or end it with Ctrl-C; another set of stores needs another data_dir",
            ) from None
        except OSError as error:  # as on a network's file system without its lock service
            raise StoreError(
                f"{data_dir}: the file system does not lock this directory: {error.strerror}",
                hint="set data_dir to a directory on a disk of this machine",
                code="store_denied",
            ) from error
        yield
