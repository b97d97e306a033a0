"""A directory that another process owns. What is stored is read as the owner reads it, without asking it.

What this process fetched waits in its memory, and is read from there, until a thread has handed it to the owner.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

from serving.bytecache.disk.extents import DamagedBlockError, Extents
from serving.bytecache.disk.layout import BLOCK, HEAD_BITS, UNIT_BITS, file_seed
from serving.bytecache.disk.names import CachedFile, is_text
from serving.bytecache.disk.reads import DiskReads
from serving.bytecache.disk.seals import Key
from serving.bytecache.disk.writing import Write, Writers, by_extent
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.flights import Flights
from serving.bytecache.reading.place import FOREVER_S
from serving.bytecache.shared.protocol import (
    VERSION,
    Check,
    Claim,
    Describe,
    Described,
    Done,
    Enter,
    Entered,
    FileLines,
    Forget,
    Hello,
    Known,
    ListFiles,
    Located,
    OtherKeysError,
    OwnerGoneError,
    OwnerLateError,
    Release,
    Request,
    Reserve,
    Resize,
    Store,
    Verify,
    Wait,
    Welcome,
    at_socket,
    decode_reply,
    receive,
    send,
)

ANSWER_S: Final = 30.0
"""How long an owner may take for an answer, besides what it was asked to wait."""
WELCOME_S: Final = 5.0
"""How long it may take to welcome a process: it has nothing to look up for that. One that was stopped never does."""
LEAST_S: Final = 0.05
"""So long is waited at least, whatever a reader's deadline has left: what it releases is to be free again."""
SETTLE_S: Final = 30.0
"""How long the end of a process waits until what it fetched is handed over."""
HEAT_MAX: Final = 255
HANDING_OVER: Final = 1
"""Threads."""
LEARNED_MIN: Final = 4_096
"""So many places of extents may be known, also of such as have left."""
R = TypeVar("R")


class Attached(DiskReads):
    """As `serving.bytecache.reading.place.Place`, but its calls raise `OwnerGoneError` when the owner is gone."""

    def __init__(self, place: Path, keys: Sequence[Key], write_buffer: int) -> None:
        """Raises `OwnerGoneError` where no owner answers, or one whose files ``keys`` don't open.

        ``write_buffer``: bytes that may wait for the owner.
        """
        super().__init__()
        self.flights = Flights()
        self.name = str(place)
        self._place = place
        self._links: set[socket.socket] = set()
        """All that are open. Those that nobody uses now are also idle."""
        self._idle: list[socket.socket] = []
        self._left = False
        """The owner is asked nothing any more: whoever needs it looks for one."""
        self._silent_since = FOREVER_S
        """When it was asked what it has not answered, nor anything since."""
        self._lock = threading.Lock()
        link, welcome, files = self._connect()
        self._idle.append(link)
        known = {key.name: key for key in keys}
        by_index = {i + 1: known[name] for i, name in enumerate(welcome.keys) if name in known}
        if not by_index and (keys or welcome.keys):  # it would store in the clear what is to be sealed
            self._end(link)
            _close(files)
            raise OtherKeysError("the owner has other keys")
        self._salt = welcome.salt
        self._heats: list[mmap.mmap] = []
        shards: list[Extents] = []
        for i in range(welcome.shards):
            heads, heat, sums, data = files[4 * i : 4 * i + 4]
            memory = mmap.mmap(heads, welcome.slots << HEAD_BITS, prot=mmap.PROT_READ)
            self._heats.append(mmap.mmap(heat, welcome.slots))
            os.close(heads)
            os.close(heat)
            shards.append(Extents(memory, sums, data, by_index, self._salt, self._tell_hits))
        self._extents = shards
        self._learned_max = LEARNED_MIN
        self._close_files = weakref.finalize(self, _close, [file for i, file in enumerate(files) if i % 4 > 1])
        self.writers = Writers(self._hand_over, self._tell_hits, HANDING_OVER, write_buffer)

    def close(self) -> None:
        """As `settle`, and ends the connections. No read may be under way."""
        self.settle()
        self.retire()
        self._close_files()

    def settle(self) -> None:
        """At the end of the process: hands over what waits, within `SETTLE_S`, and counts its hits. Reads go on."""
        self.writers.flush(SETTLE_S)
        self.writers.end()
        self._tell_hits()

    def retire(self) -> None:
        """Leaves the owner for good: what waits is dropped. Reads go on."""
        self._leave()
        self.writers.end()

    def after_fork(self) -> None:
        """In the child: its parent's connections are not its own."""
        self.flights = Flights()
        self.health.after_fork()
        self.writers.after_fork()
        self._left = True
        self._lock = threading.Lock()
        for link in self._links:
            link.close()
        self._links.clear()
        self._idle.clear()

    # As `Place`.

    def enter(self, path: str, version: str, size: int, scope: str, timeout_s: float = FOREVER_S) -> CachedFile | None:
        """As `Directory.enter`."""
        if not all(map(is_text, (path, version, scope))):
            return None
        request = Enter(path, version, size, scope)
        return self._file(path, self._call(request, Entered, timeout_s=timeout_s), scope)

    def known(self, path: str, timeout_s: float = FOREVER_S) -> CachedFile | None:
        """As `Place.known`."""
        if not is_text(path):
            return None
        return self._file(path, self._call(Known(path), Entered, timeout_s=timeout_s), "")

    def block(self, file: CachedFile, block: int) -> bytes | memoryview | None:
        """One whole block, stored or still waiting to be."""
        waiting = self.writers.waiting(file.number, block)
        if waiting is not None:
            return waiting
        return self.read(file, block * BLOCK, min((block + 1) * BLOCK, file.size))

    def claim(self, file: CachedFile, blocks: Sequence[int], timeout_s: float = FOREVER_S) -> Sequence[int]:
        """As `Place.claim`. What others have stored meanwhile can be read from now on."""
        answer = self._call(Claim(file.number, list(blocks)), Located, timeout_s=timeout_s)
        self._learn(file.number, answer.slots)
        return answer.claimed

    def keep(
        self,
        file: CachedFile,
        first: int,
        data: memoryview,
        value: Value,
        expires: int,
        timeout_s: float = FOREVER_S,
    ) -> None:
        """Soon. What is dropped, because too much waits already, is free to be fetched by others."""
        if self._left:
            raise OwnerGoneError("the owner was left")
        for write in by_extent(file, first, data, value, expires):
            if not self.writers.submit(write):
                self.release(file, write.blocks, timeout_s)

    def release(self, file: CachedFile, blocks: Sequence[int], timeout_s: float = FOREVER_S) -> None:
        """As `Place.release`."""
        if blocks:
            self._call(Release(file.number, list(blocks)), Done, timeout_s=timeout_s)

    def wait(self, file: CachedFile, blocks: Sequence[int], timeout_s: float) -> None:
        """As `Place.wait`. Half of the time is for the answer: one that was stopped gives none."""
        request = Wait(file.number, list(blocks), timeout_s / 2)
        found = self._call(request, Located, extra_s=timeout_s / 2, timeout_s=timeout_s / 2)
        self._learn(file.number, found.slots)

    def forget(self, path: str, *, prefix: bool, timeout_s: float | None = None) -> int:
        """As `Place.forget`."""
        self.writers.forget(lambda each: each.path.startswith(path) if prefix else each.path == path)
        if not is_text(path):
            return 0
        return self._call(Forget(path, prefix), Done, timeout_s=FOREVER_S if timeout_s is None else timeout_s).counts[0]

    # For commands.

    def describe(self, *, files: bool) -> Described:
        """As `serving.bytecache.shared.server.describe`."""
        found = self._call(Describe(files=False), Described)
        if files:
            link, _, shared = self._connect()
            _close(shared)
            try:
                part = self._ask(link, ListFiles(), FileLines).files
            except OwnerGoneError:  # of an earlier version, which tells all at once, or gone
                return self._call(Describe(files=True), Described)
            while part:
                found.files += part
                part = self._ask(link, None, FileLines).files
            self._end(link)
        return found

    def verify(self) -> tuple[int, int]:
        """As `Directory.verify`."""
        whole, damaged = self._call(Verify(), Done, extra_s=3_600).counts
        return whole, damaged

    def resize(self, quota: int) -> None:
        """As `Directory.resize`."""
        self._call(Resize(quota), Done)

    def reserve(self, wanted: int) -> Callable[[], object] | None:
        """As `Place.reserve`. The room is held by a connection of its own: it ends with this process."""
        link, _, files = self._connect()
        _close(files)
        if self._ask(link, Reserve(wanted), Done).counts == [1]:
            return lambda: self._end(link)
        self._end(link)
        return None

    # Inside.

    def _hand_over(self, write: Write) -> None:
        if self._left:
            self.writers.dropped(write)
            return
        request = Store(write.file.number, write.first, len(write.data), int(write.value), write.expires)
        try:
            answer = self._call(request, Located, write.data)
        except OwnerGoneError:
            self._leave()
            self.writers.dropped(write)
        else:
            self._learn(write.file.number, answer.slots)

    def _damaged(self, file: CachedFile, damaged: DamagedBlockError) -> None:
        with suppress(OwnerGoneError):
            self._call(Check(file.number, damaged.block), Done, timeout_s=WELCOME_S)

    def _file(self, path: str, entered: Entered, scope: str) -> CachedFile | None:
        if not entered.number:
            return None
        self._learn(entered.number, entered.slots)
        seed = file_seed(self._salt, entered.number)
        return CachedFile(entered.number, path, entered.version, entered.size, scope, seed)

    def _learn(self, number: int, slots: Sequence[tuple[int, int]]) -> None:
        for unit, slot in slots:
            shard = self._extents[(number + (unit >> 1)) % len(self._extents)]
            shard.table[number << UNIT_BITS | unit] = slot
        if sum(len(shard.table) for shard in self._extents) > self._learned_max:
            for shard in self._extents:
                shard.prune()
            self._learned_max = max(LEARNED_MIN, 2 * sum(len(shard.table) for shard in self._extents))

    def _tell_hits(self) -> None:
        """Counts hits where the owner sees them."""
        for shard, heat in zip(self._extents, self._heats, strict=True):
            for _ in range(len(shard.hits)):
                try:
                    slot = shard.table[shard.hits.popleft()]
                except (IndexError, KeyError):  # another thread was faster
                    continue
                heat[slot] = min(HEAT_MAX, heat[slot] + 1)

    def _call(
        self,
        request: Request,
        kind: type[R],
        data: memoryview | None = None,
        *,
        extra_s: float = 0,
        timeout_s: float = FOREVER_S,
    ) -> R:
        """``extra_s``: what the owner was asked to wait, at most. Raises `OwnerGoneError`."""
        if self._left:
            raise OwnerGoneError("the owner was left")
        with self._lock:
            link = self._idle.pop() if self._idle else None
        if link is None:
            link, _, files = self._connect(timeout_s)
            _close(files)
        answer = self._ask(link, request, kind, data, extra_s=extra_s, timeout_s=timeout_s)
        with self._lock:
            if not self._left:
                self._idle.append(link)
                return answer
        self._end(link)
        return answer

    def _leave(self) -> None:
        """All that was claimed is free again, with the connections. One that is in use ends with its answer."""
        with self._lock:
            self._left = True
            idle, self._idle = self._idle, []
        for link in idle:
            self._end(link)

    def _ask(
        self,
        link: socket.socket,
        request: Request | None,
        kind: type[R],
        data: memoryview | None = None,
        *,
        extra_s: float = 0,
        timeout_s: float = FOREVER_S,
    ) -> R:
        """``request``: None: more of the answer. Closes ``link`` and raises `OwnerGoneError` if that was in vain."""
        allowed_s = min(ANSWER_S, max(timeout_s, LEAST_S))
        try:
            link.settimeout(allowed_s + extra_s)
            if request is not None:
                send(link, request, data)
            answer = decode_reply(receive(link))
            if not isinstance(answer, kind):
                raise OwnerGoneError(f"{type(answer).__name__} is no answer to {type(request).__name__}")
        except (OSError, OwnerGoneError) as error:
            self._end(link)
            raise self._no_answer(error, allowed_s, ANSWER_S) from error
        self._silent_since = FOREVER_S
        return answer

    def _no_answer(self, error: Exception, allowed_s: float, usual_s: float) -> OwnerGoneError:
        """One that had less time than usual may still answer, unless it has answered nobody for that long."""
        now = monotonic()
        if isinstance(error, TimeoutError) and allowed_s < usual_s:
            self._silent_since = min(self._silent_since, now - allowed_s)
            if now - self._silent_since < ANSWER_S:
                return OwnerLateError(str(error))
        return OwnerGoneError(str(error))

    def _end(self, link: socket.socket) -> None:
        self._links.discard(link)
        link.close()

    def _connect(self, timeout_s: float = FOREVER_S) -> tuple[socket.socket, Welcome, list[int]]:
        try:
            link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:  # no descriptor is free
            raise OwnerGoneError(str(error)) from error
        self._links.add(link)
        allowed_s = min(WELCOME_S, max(timeout_s, LEAST_S))
        link.settimeout(allowed_s)
        files: list[int] = []
        try:
            at_socket(self._place, "connect", link)
            send(link, Hello(VERSION))
            welcome = decode_reply(receive(link))
            if not isinstance(welcome, Welcome):
                raise OwnerGoneError("no welcome")
            while len(files) < 4 * welcome.shards:
                mark, got, flags, _ = socket.recv_fds(link, 1, 4, socket.MSG_CMSG_CLOEXEC)
                files += got
                if not mark or flags & socket.MSG_CTRUNC:
                    raise OwnerGoneError("the connection ended" if not mark else "too many open files")
        except (OSError, OwnerGoneError) as error:
            self._end(link)
            _close(files)
            raise self._no_answer(error, allowed_s, WELCOME_S) from error
        return link, welcome, files


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)
