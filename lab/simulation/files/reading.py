"""Reads of files, in each way that programs and HTTP clients have, and the judge who compares every byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import httpx2

from lab.simulation.engine import Outcome
from lab.simulation.files.host import HOST, PORT, ROOT, HostRun
from lab.simulation.files.store import content
from lab.simulation.files.tracing import Line
from lab.simulation.kernel.fronts import FrontTransport
from lab.simulation.whole_processes.run import CLIENT
from serving.bytecache.disk.health import RETRY_S
from serving.bytecache.disk.layout import GRANULE
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.policy.pools import Value

STALE: Final = "no stale answer"
BYTES: Final = "the bytes are the file's"
RECOVERS: Final = "recovers by itself"
EXPLAINED: Final = "explanation true"
NEVER_RAISES: Final = "never raises"
FILES: Final = 4
SIZES: Final = (0, 1, 3_000, 65_536, 65_537, 200_000, 1 << 20, (1 << 20) + 70_000, (3 << 20) + 7)
LENGTHS: Final = (1, 300, 4_096, 65_536, 70_000, 300_000, 2 << 20)
PLACES: Final = 32
"""A file is cut into so many parts, at which ranges begin."""
CONDITIONS: Final = ("", "if-none-match", "if-range", "if-match")
READ_S: Final = 90.0
WAYS_TRACED: Final = 3
"""Of the ways of programs to read the first ones ask the cache for exactly the ranges that they want."""
Ranges = list[tuple[int, int]]


class Given(NamedTuple):
    """How a program opens a file."""

    value: Value | None = None
    ttl_s: int = 0
    fill: bool = True
    bypass: bool = False
    tag: str = ""


GIVEN: Final = (
    *(Given(),) * 3,
    Given(value=Value.SCAN),
    Given(value=Value.PINNED),
    Given(ttl_s=2),
    Given(fill=False),
    Given(bypass=True),
    Given(tag="of a table"),
)


class ReadingRun(HostRun):
    """The ops of readers."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self._under_way: list[Any] = []
        self.traced: set[Line] = set()
        """What a trace must have: the reads that were given and pass by no directory."""
        self._tags: dict[str, str] = {}
        """Path → the entity tag that a client was given last."""
        self._tagged: dict[tuple[str, str], set[int]] = {}
        """(path, entity tag) → versions of the file that had all the bytes that were given with it."""
        self.ways: Sequence[Callable[[FreshetFileSystem, str, Ranges, Given], list[bytes]]] = (
            _whole_ranges,
            _one_by_one,
            _into_memory,
            _by_names,
            _through_a_file,
        )

    # --- programs ---

    def op_put(self, path: int, size: int, by_program: int) -> None:
        """A file gets other bytes: from elsewhere, or by a program of the host."""
        name, length = f"f{path}", SIZES[size]
        self.say(f"{name} gets {length} bytes")
        if by_program and self.files is not None:
            self._program(partial(self.files.pipe_file, f"{ROOT}/{name}", content(name, 0, length)))
        else:
            self.store.put(f"files/{name}", length)

    def op_delete(self, path: int, by_program: int) -> None:
        """A file is deleted."""
        name = f"files/f{path}"
        if name not in self.store.paths():
            return
        if by_program and self.files is not None:
            self._program(partial(self.files.rm_file, f"{ROOT}/f{path}"))
        else:
            self.store.put(name, None)

    def _program(self, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except ConnectionError:
                self.outcome.answers["not written"] += 1

        self.on_host(run, READ_S)

    def op_read(self, path: int, place: int, length: int, way: int, given: int, at_once: int) -> None:
        """A program reads one range, or several; the world may go on meanwhile."""
        if self.files is None:
            return
        files, name = self.files, f"files/f{path}"
        ranges = self._ranges(name, place, length, several=way % 2 == 1)
        read = partial(self.ways[way % len(self.ways)], files, f"{ROOT}/f{path}", ranges, GIVEN[given % len(GIVEN)])
        traced = way % len(self.ways) < WAYS_TRACED and not GIVEN[given % len(GIVEN)].bypass
        thread = self.kernel.spawn(HOST, partial(self._read, name, ranges, read, traced=traced), "reads")
        if not at_once:
            self.run_until(lambda: thread.done or thread.process.dead, READ_S)
            if not (thread.done or thread.process.dead):
                self.complain(RECOVERS, f"a read of {name} does not end")
            self.check_room()

    def op_prefetch(self, path: int, place: int, length: int) -> None:
        """A program lets a range be fetched."""
        if (files := self.files) is not None:
            [wanted] = self._ranges(f"files/f{path}", place, length, several=False)
            self.on_host(lambda: self._suffer(lambda: files.prefetch(f"{ROOT}/f{path}", *wanted)), READ_S)

    def _suffer(self, work: Callable[[], object]) -> None:
        began = self.kernel.time
        try:
            work()
        except (ByteCacheError, ConnectionError, FileNotFoundError) as error:
            self._check_error("a prefetch", error, began, changed=True)

    def _ranges(self, name: str, place: int, length: int, *, several: bool) -> Ranges:
        size = len(self.store.now(name).data or b"")
        start = size * (place % PLACES) // PLACES
        if place % 3 == 0:
            start -= start % GRANULE
        first = (start, start + LENGTHS[length])
        return [first, (max(0, size - 900), size), (start // 2, start // 2 + 300)] if several else [first]

    def _read(self, name: str, ranges: Ranges, read: Callable[[], list[bytes]], *, traced: bool = False) -> None:
        began = self.kernel.time
        try:
            found = read()
        except (ByteCacheError, ConnectionError, FileNotFoundError) as error:
            versions = self.store.since(name, began)
            is_gone = isinstance(error, FileNotFoundError)
            self._check_error(name, error, began, changed=len(versions) > 1, gone=is_gone and _has_gone(versions))
            return
        self.outcome.answers["read"] += 1
        self._judge(name, began, ranges, found)
        versions = self.store.since(name, began)
        has_directory = not self.struck & {"disk full", "disk fails"}  # else a read may pass by it, and is not traced
        if traced and has_directory and self.store.style == "ETag" and len(versions) == 1:
            size = len(versions[0].data or b"")
            cut = [(max(0, start), min(end, size)) for start, end in ranges]
            self.traced |= {(name, size, start, end) for start, end in cut if start < end}

    def _check_error(self, name: str, error: Exception, began: float, *, changed: bool, gone: bool = False) -> None:
        code = error.code if isinstance(error, ByteCacheError) else type(error).__name__
        self.outcome.answers[code] += 1
        has_cause = {
            "file_changed": changed,
            "short_read": self.store.failed_at >= began,
            "FileNotFoundError": gone or changed,
        }.get(code, self.store.failed_at >= began)
        if not has_cause:
            self.complain(NEVER_RAISES, f"{name}: {code} without a cause: {error}")

    def _judge(self, name: str, began: float, ranges: Ranges, found: Sequence[bytes]) -> None:
        """All bytes are those of one version that the file has had since the read began."""
        versions = [each.data for each in self.store.since(name, began) if each.data is not None]
        for data in versions:
            if [data[start:end] for start, end in ranges] == list(found):
                return
        if not self.store.names_versions and len(versions) > 1:
            return  # nobody can tell that the file has changed amid the read
        for data in self.store.before(name, began):
            if [data[start:end] for start, end in ranges] == list(found):
                self.complain(STALE, f"{name} is read as it was before the read began")
                return
        places = [place for place, part in zip(ranges, found, strict=True) if place and part is not None]
        self.complain(BYTES, f"{name} at {places}: {[len(part) for part in found]} bytes are of no version of it")

    # --- HTTP ---

    def op_get(self, path: int, place: int, length: int, kind: int, condition: int, at_once: int) -> None:
        """A client reads over HTTP."""
        name = f"files/f{path}"
        ranges = self._ranges(name, place, length, several=kind == 1)
        asked = [
            f"bytes={ranges[0][0]}-{ranges[0][1] - 1}",
            "bytes=" + ", ".join(f"{start}-{max(start, end - 1)}" for start, end in ranges),
            f"bytes={ranges[0][0]}-",
            f"bytes=-{LENGTHS[length]}",
            "",
        ][kind]
        headers = {"range": asked} if asked else {}
        if CONDITIONS[condition] and name in self._tags:
            headers[CONDITIONS[condition]] = self._tags[name]
        thread = self.kernel.spawn(CLIENT, partial(self._get, name, headers), "get")
        if not at_once:
            self.run_until(lambda: thread.done, READ_S)
            if not thread.done:
                self.complain(RECOVERS, f"a client waits for {name} for ever")

    def _get(self, name: str, headers: dict[str, str]) -> None:
        began, fetched = self.kernel.time, self.store.fetched
        transport = FrontTransport(self.kernel, lambda: PORT)
        url = f"http://front/v1/bytes/simulated://{name}"
        request = httpx2.Request("GET", url, headers=headers, extensions={"timeout": {"read": 60.0}})
        versions = partial(self.store.since, name, began)
        try:
            answer = transport.handle_request(request)
        except httpx2.TransportError as error:
            has_cause = self.files is None or "kill" in self.struck or "death while writing" in self.struck
            if not has_cause and len(versions()) == 1 and self.store.failed_at < began:
                self.complain(NEVER_RAISES, f"a client of {name} is left without a cause: {error}")
            return
        self.outcome.answers[f"HTTP {answer.status_code}"] += 1
        candidates = [each for each in versions() if each.data is not None]
        fitting = [each.number for each in candidates if _fits(answer, headers, each.data or b"")]
        tag = answer.headers.get("etag", "")
        if answer.status_code in (200, 206):
            self._judge_answer(name, answer, fitting, bool(candidates), tag, headers.get("if-range"))
            if answer.headers.get("freshet-served-from") == "cache" and self.store.fetched != fetched:
                self.outcome.answers["others fetched meanwhile"] += 1
        elif answer.status_code == 304 and tag != headers.get("if-none-match"):
            self.complain(EXPLAINED, f"{name} is said not to have changed since {headers}, and to be {tag}")
        elif answer.status_code == 404:
            if not _has_gone(versions()):
                self.complain(NEVER_RAISES, f"{name} is there, and is not found")
        elif answer.status_code >= 500 and self.store.failed_at < began and self.files is not None:
            self.complain(NEVER_RAISES, f"{name}: {answer.status_code} {answer.content[:200]!r} without a cause")
        elif answer.status_code == 416 and not any(_beyond(headers["range"], each.data or b"") for each in candidates):
            self.complain(EXPLAINED, f"{headers['range']} of {name} is not given, and is within the file")
        if tag:
            self._tags[name] = tag

    def _judge_answer(
        self, name: str, answer: httpx2.Response, fitting: list[int], has_any: bool, tag: str, begun_with: str | None
    ) -> None:
        if answer.status_code == 206 and begun_with is not None and begun_with != tag:
            self.complain(EXPLAINED, f"a part of {name} as {tag} is given to who has begun with {begun_with}")
        if not fitting and (self.store.names_versions or not has_any):
            self.complain(BYTES, f"{answer.status_code} for {name} has bytes that are of no version of it")
        elif tag and fitting:
            known = self._tagged.setdefault((name, tag), set(fitting))
            known &= set(fitting)
            if not known:
                self.complain(EXPLAINED, f"{name} has had two contents under {tag}")

    # --- the end ---

    def finish(self) -> None:
        """All faults end. Then every file is read, and is read again without the store."""
        self.disk.dies_at.clear()
        self.store.is_down, self.store.to_shorten = False, 0
        self.let(RETRY_S + READ_S)
        self.start(HOST)
        self.run_until(lambda: self.files is not None, 60)
        files, directory = self.files, self.directory
        if files is None or directory is None:
            self.complain(RECOVERS, "the host does not start")
            return
        for name in sorted(self.store.paths()):
            self.on_host(partial(self._read_again, files, name), READ_S)
            self.check_room()
        self.let(1.0)

    def _read_again(self, files: FreshetFileSystem, name: str) -> None:
        whole = [(0, len(self.store.now(name).data or b""))]
        for _ in range(3):
            self._read(name, whole, lambda: _whole_ranges(files, f"simulated://{name}", whole, Given()))
            if (directory := self.directory) is not None:
                directory.writers.flush()
        before = self.store.fetched
        self._read(name, whole, lambda: _whole_ranges(files, f"simulated://{name}", whole, Given()))
        may_stay = self.admission == "all" and self.store.style != "nothing" and whole[0][1] <= 200_000
        if may_stay and self.store.fetched != before and not self.options["scopes"]:
            self.complain(RECOVERS, f"{name} is fetched again each time it is read")


def _has_gone(versions: Sequence[Any]) -> bool:
    return any(each.data is None for each in versions)


def _fits(answer: httpx2.Response, headers: dict[str, str], data: bytes) -> bool:
    """Whether an answer is what RFC 9110 says for a file of these bytes. By its words, without the product's code."""
    if answer.status_code == 200:
        return answer.content == data
    wanted = _resolved(headers.get("range", ""), len(data))
    if answer.status_code != 206 or not wanted:
        return False
    if len(wanted) == 1:
        start, end = wanted[0]
        place = f"bytes {start}-{end - 1}/{len(data)}"
        return answer.headers.get("content-range") == place and answer.content == data[start:end]
    boundary = answer.headers["content-type"].partition("boundary=")[2].encode()
    parts = answer.content.split(b"\r\n--" + boundary)[1:]
    bodies = [part.partition(b"\r\n\r\n") for part in parts[:-1]]
    places = [f"bytes {start}-{end - 1}/{len(data)}".encode() for start, end in wanted]
    return [body for _, _, body in bodies] == [data[start:end] for start, end in wanted] and all(
        place in head for place, (head, _, _) in zip(places, bodies, strict=True)
    )


def _resolved(asked: str, size: int) -> Ranges:
    found = []
    for each in asked.partition("=")[2].split(","):
        first, _, last = each.strip().partition("-")
        start = int(first) if first else max(0, size - int(last or 0))
        end = min(size, int(last) + 1) if first and last else size
        if start < end:
            found.append((start, end))
    return found


def _beyond(asked: str, data: bytes) -> bool:
    return not _resolved(asked, len(data))


def _opened(files: FreshetFileSystem, uri: str, given: Given) -> Any:
    return files.open_cached(uri, **{name: value for name, value in given._asdict().items() if value is not None})


def _whole_ranges(files: FreshetFileSystem, uri: str, ranges: Ranges, given: Given) -> list[bytes]:
    return files.cache.read_many(_opened(files, uri, given), ranges)


def _one_by_one(files: FreshetFileSystem, uri: str, ranges: Ranges, given: Given) -> list[bytes]:
    file = _opened(files, uri, given)
    return [files.cache.read(file, *each) for each in ranges]


def _into_memory(files: FreshetFileSystem, uri: str, ranges: Ranges, given: Given) -> list[bytes]:
    file, found = _opened(files, uri, given), []
    for start, end in ranges:
        memory = bytearray(end - start)
        found.append(bytes(memory[: files.cache.read_into(file, start, memoryview(memory))]))
    return found


def _by_names(files: FreshetFileSystem, uri: str, ranges: Ranges, given: Given) -> list[bytes]:
    del given
    if len(ranges) == 1:
        return [files.cat_file(uri, *ranges[0])]
    starts, ends = (list(each) for each in zip(*ranges, strict=True))
    return files.cat_ranges([uri] * len(ranges), starts, ends, on_error="raise")


def _through_a_file(files: FreshetFileSystem, uri: str, ranges: Ranges, given: Given) -> list[bytes]:
    del given
    found = []
    with files.open(uri) as file:
        for start, end in ranges:
            file.seek(min(start, file.size))
            found.append(file.read(end - start))
    return found
