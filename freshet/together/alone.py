"""One ``freshet up`` for a directory of stores: a second one would take the sources from the first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from consumers.store.directory import lock_file
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
    try:
        handle = lock_file(data_dir / LOCK_NAME, "directory")
    except BlockingIOError:
        raise AlreadyUp(
            f"another `freshet up` runs with the stores in {data_dir}",
            hint="use that one, or end it with Ctrl-C; another set of stores needs another data_dir",
        ) from None
    try:
        yield
    finally:
        os.close(handle)
