"""Records what clients saw, as JSON lines: each commit and each read with the times of its begin and end.

Times are seconds of one monotonic clock: all clients are threads of one process. A write gives its key a version that
no other write has, or none (a delete). A commit whose answer was lost is in doubt; an ``outcome`` line settles it.
Refusals and faults are written down for `lab.blackbox.availability`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Recorder:
    """A file of JSON lines that several threads append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends the recording; what comes later is dropped."""
        with self._lock:
            self._file.close()

    @staticmethod
    def now() -> float:
        """The time that begins and ends are told in."""
        return time.monotonic()

    def commit(
        self, session: str, begin: float, sequence: int, writes: Mapping[str, int | None], *, transaction: int = 0
    ) -> None:
        """A commit that ended now. ``sequence`` 0: in doubt, until an outcome names its ``transaction``."""
        self._write(
            op="commit",
            session=session,
            begin=begin,
            end=self.now() if sequence else None,
            sequence=sequence,
            transaction=transaction,
            writes=dict(writes),
        )

    def outcome(self, transaction: int, sequence: int) -> None:
        """A commit in doubt took place."""
        self._write(op="outcome", transaction=transaction, sequence=sequence)

    def read(
        self,
        session: str,
        begin: float,
        key: str,
        version: int | None,
        *,
        demanded: int,
        freshness: str,
        told: str,
        token: str,
    ) -> None:
        """A read that ended now. ``session`` "": none. ``demanded``: a commit's sequence, 0: none. ``told``: why."""
        self._write(
            op="read",
            session=session,
            begin=begin,
            end=self.now(),
            key=key,
            version=version,
            demanded=demanded,
            freshness=freshness,
            told=told,
            token=token,
        )

    def refusal(self, begin: float, code: str) -> None:
        """A read that was refused now."""
        self._write(op="refusal", begin=begin, end=self.now(), code=code)

    def fault(self, begin: float, target: str, kind: str) -> None:
        """A fault that has ended now: everything runs again."""
        self._write(op="fault", begin=begin, end=self.now(), target=target, kind=kind)

    def _write(self, **fields: Any) -> None:
        line = json.dumps(fields, separators=(",", ":"))
        with self._lock:
            if not self._file.closed:
                self._file.write(line + "\n")
