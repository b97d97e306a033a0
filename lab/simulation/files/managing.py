"""What programs do with files besides reading ranges of them, and what operators see of the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from lab.simulation.engine import Outcome
from lab.simulation.files.host import HOST, PORT, ROOM, ROOT
from lab.simulation.files.reading import BYTES, EXPLAINED, READ_S, ReadingRun
from lab.simulation.files.store import content
from lab.simulation.files.tracing import wrong
from lab.simulation.kernel.fronts import FrontTransport
from lab.simulation.operators.probes import Probe
from serving.bytecache.filesystem.filesystem import FreshetFileSystem

LOOKS: Final = 5
METRICS: Final = Probe("GET", "/metrics", "/metrics")


class ManagingRun(ReadingRun):
    """The ops of programs that write, copy and list files, and of operators."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self.ways_to_change: Sequence[Callable[[FreshetFileSystem, str, str, Path], object]] = (
            _write,
            _copy,
            _upload,
            lambda files, name, _, __: files.touch(name),
            lambda files, name, _, __: files.rm(name),
        )

    def op_change(self, path: int, other: int, way: int) -> None:
        """A program changes a file by one of fsspec's other calls."""
        if (files := self.files) is not None:
            change = self.ways_to_change[way % len(self.ways_to_change)]
            names = f"{ROOT}/f{path}", f"{ROOT}/f{other}"
            self.say(f"a program changes f{path}: way {way}")
            self._program(lambda: change(files, *names, self.disk.root / "local"))

    def op_look(self, path: int, way: int) -> None:
        """A program asks for a file's size, whether it is there, or for all of it."""
        if (files := self.files) is not None:
            look = (self._list, self._ask, self._take_whole, self._download, self._look_beyond)[way % LOOKS]
            self.on_host(lambda: self._suffer(lambda: look(files, f"files/f{path}")), READ_S)

    def _list(self, files: FreshetFileSystem, name: str) -> None:
        began = self.kernel.time
        listed = name in files.ls(ROOT, detail=False)
        there = {each.data is not None for each in self.store.since(name, began)}
        if listed not in there:
            self.complain(EXPLAINED, f"{name} is {'' if listed else 'not '}listed")

    def _ask(self, files: FreshetFileSystem, name: str) -> None:
        uri, began = f"simulated://{name}", self.kernel.time
        found = files.exists(uri), files.isfile(uri), files.isdir(uri)
        size = files.info(uri)["size"] if found[0] else None
        had = {None if each.data is None else len(each.data) for each in self.store.since(name, began)}
        if len(had) == 1 and (size not in had or found != (size is not None, size is not None, False)):
            self.complain(EXPLAINED, f"{name} is said to be {found} and of {size} bytes, and has {had}")

    def _take_whole(self, files: FreshetFileSystem, name: str) -> None:
        began = self.kernel.time
        self._judge_whole(name, began, files.cat_file(f"simulated://{name}"))

    def _download(self, files: FreshetFileSystem, name: str) -> None:
        began, local = self.kernel.time, self.disk.root / "local"
        files.get_file(f"simulated://{name}", str(local))
        self._judge_whole(name, began, local.read_bytes())

    def _look_beyond(self, files: FreshetFileSystem, name: str) -> None:
        began = self.kernel.time
        size = len(self.store.now(name).data or b"")
        found = files.cat_ranges([f"simulated://{name}"] * 2, [size + 10, 0], [size + 20, 5], on_error="raise")
        versions = self.store.since(name, began)
        if len(versions) == 1 and found != [b"", (versions[0].data or b"")[:5]]:
            self.complain(BYTES, f"beyond its end and at its beginning {name} has {found}")

    def _judge_whole(self, name: str, began: float, found: bytes) -> None:
        versions = self.store.since(name, began)
        if found not in [each.data for each in versions] and (self.store.names_versions or len(versions) == 1):
            self.complain(BYTES, f"{name} is taken whole, and its {len(found)} bytes are of no version of it")

    def op_scrape(self) -> None:
        """An operator's tool asks the front of the host for its metrics."""
        if self.files is None:
            return
        transport, life = FrontTransport(self.kernel, lambda: PORT), self.kernel.process(HOST)
        thread = self.kernel.spawn(HOST, partial(self._scrape, life, transport), "scrape")
        self.run_until(lambda: thread.done or thread.process.dead, READ_S)

    def _scrape(self, life: object, transport: FrontTransport) -> None:
        response = self.looking.probe(life, METRICS, transport.handle_request)
        if response is None or response.status_code != 200:
            return
        told = {
            sample.name: sample.value
            for family in text_string_to_metric_families(response.text)
            for sample in family.samples
        }
        used, quota = told.get("freshet_bytes_directory_used_bytes"), told.get("freshet_bytes_directory_quota_bytes")
        self.outcome.answers["scraped"] += used is not None
        if used is not None and quota is not None and used > quota:
            self.complain(ROOM, f"the metrics tell of {used:g} bytes in a quota of {quota:g}")

    def finish(self) -> None:
        """See `ReadingRun.finish`. Then the trace is judged, if there is one."""
        super().finish()
        if self.trace is not None and not self.outcome.violations and (what := wrong(self.trace, self.traced)):
            self.complain(EXPLAINED, what)


def _write(files: FreshetFileSystem, name: str, _: str, __: Path) -> None:
    with files.open(name, "wb") as file:
        file.write(content(name, 0, 70_000))


def _copy(files: FreshetFileSystem, name: str, other: str, _: Path) -> None:
    if files.exists(other) and name != other:
        files.cp_file(other, name)


def _upload(files: FreshetFileSystem, name: str, _: str, local: Path) -> None:
    local.write_bytes(content(name, 0, 3_000))
    files.put_file(str(local), name)
