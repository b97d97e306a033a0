"""The consuming process: the fold runs in a thread of its own, the owner's server in the main thread."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog

from consumers.owner.partitions import Ownership, Partition
from consumers.owner.protocol import CheckpointPlace, OwnerError
from consumers.owner.server import OwnerServer, check_owner
from consumers.process.announcing import Announcer
from consumers.process.kafka_output import KafkaOutput
from consumers.process.loop import Consumption, ConsumptionSettings
from consumers.process.metrics import serve_metrics
from consumers.store.directory import held_alone, lock_directory, remove_unless_kept
from consumers.store.errors import RetryableStoreError, StoreError, store_error
from consumers.store.leader_epochs import UNKNOWN, keep_leader_epoch
from consumers.store.manifest import read_manifest
from stream.access.certificates import Certificates
from stream.access.grants import Access
from stream.access.listening import is_loopback
from stream.interpreter import prepare_to_answer, raise_open_files

log = structlog.get_logger(__name__)

PORT_NAME: Final = "port"
"""In the data directory: where the owner protocol listened last."""
CHECKPOINTS_NAME: Final = "checkpoints"
"""In the data directory, also in that of a process with workers."""
CHECKPOINTS_KEPT: Final = 2
"""Per partition; older ones are removed when a new one is made, unless they are read then."""


@dataclass(frozen=True, slots=True)
class OwnerSettings:
    """Where the owner protocol and ``/metrics`` listen. Port 0: any free one; ``metrics_port`` None: no metrics.

    ``announced``: the ``host:port`` to announce, if others reach this process at another address. ``access``: who may
    ask, beyond loopback for metrics too. ``follow``: keeps the access up to date in the process, while it is entered.
    ``files``: of TLS; ``plain``: neither needs it. ``version``: what ``freshet_build_info`` shows. ``metrics_host``:
    "": ``host``. ``standby``: answer, but announce nothing before `freshet swap` has moved readers here.
    ``follower``: announce followers until then. ``zone``: as in the settings. ``front``: URL of the read API in the
    same process. ``traced``: has the process send spans while it is entered.
    """

    host: str = "127.0.0.1"
    port: int = 0
    access: Access = field(default_factory=Access)
    metrics_port: int | None = None
    announced: str = ""
    version: str = ""
    metrics_host: str = ""
    standby: bool = False
    follower: bool = False
    zone: str = ""
    front: str = ""
    files: Certificates = field(default_factory=Certificates)
    plain: bool = False
    follow: Callable[[Access], AbstractContextManager[object]] = nullcontext
    traced: Callable[[], AbstractContextManager[object]] = nullcontext


def run_consumer(
    consume: ConsumptionSettings, owner: OwnerSettings, on_start: Callable[[str], None] = lambda _: None
) -> None:
    """Consumes and answers until SIGTERM or SIGINT. Raises `FreshetError` if retrying can't help.

    ``on_start`` is told where the metrics are, as ``host:port``, or "".
    """
    import uvloop

    prepare_to_answer()
    raise_open_files()  # of connections and of each partition's store
    with owner.traced(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(consume, owner, on_start))


async def serve(
    consume: ConsumptionSettings, owner: OwnerSettings, on_start: Callable[[str], None] = lambda _: None
) -> None:
    """As `run_consumer`, in the running loop."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with owner.follow(owner.access):
        await _run_until(stop, ConsumerProcess(consume, owner), on_start)


async def _run_until(stop: asyncio.Event, process: ConsumerProcess, on_start: Callable[[str], None]) -> None:
    address = await process.start()
    on_start(process.metrics_address)
    folding = asyncio.wrap_future(process.folding)
    folding.add_done_callback(lambda done: done.cancelled() or done.exception())  # `stop` raises it
    stopping = asyncio.create_task(stop.wait())
    announcing = asyncio.create_task(_log_when_ready(process, address))
    try:
        ends: list[asyncio.Future[Any]] = [folding, stopping]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            log.info("stopping", address=address)
    finally:
        stopping.cancel()
        announcing.cancel()
        await process.stop()
    log.info("stopped", address=address)


async def _log_when_ready(process: ConsumerProcess, address: str) -> None:
    await asyncio.wrap_future(process.consumption.ready)
    owned = process.consumption.ownership.of("")
    log.info(
        "ready",
        address=address,
        metrics=process.metrics_address,
        instance=process.consumption.ownership.instance,
        partitions=[each.name for each in owned],
        entries=sum(each.store.estimated_entries() for each in owned),
    )


class ConsumerProcess:
    """A consuming process's parts, for `run_consumer` and for processes that compose it with others."""

    def __init__(self, consume: ConsumptionSettings, owner: OwnerSettings) -> None:
        self.settings = consume
        self.owner = owner
        self.folding: Future[None] = Future()
        self.metrics_address = ""
        self.consumption: Consumption
        self.server: OwnerServer
        self._thread: threading.Thread | None = None
        self._metrics: Any = None
        self._lock: int | None = None

    async def start(self) -> str:
        """Listens, then starts folding; returns the owner's announced ``host:port``."""
        loop = asyncio.get_running_loop()

        def on_progress(partition: Partition) -> None:
            loop.call_soon_threadsafe(partition.wake)

        self._lock = _lock_data_dir(self.settings.data_dir)
        ownership = Ownership(self.settings.data_dir)
        self.server = OwnerServer(
            ownership,
            self._make_checkpoints,
            access=self.owner.access,
            files=self.owner.files,
            plain=self.owner.plain,
        )
        host, port = await listen_again(self.server, self.owner.host, self.owner.port, self.settings.data_dir)
        address = self.owner.announced or f"{announced_host(host)}:{port}"
        announcer = Announcer(
            self.settings.kafka,
            address,
            lambda: ownership.instance,
            self.settings.group,
            standby=self.owner.standby,
            follower=self.owner.follower,
            zone=self.owner.zone,
            front=self.owner.front,
            rename=ownership.rename,
        )
        self.server.stands = announcer.standing
        kafka_output = KafkaOutput(self.settings.kafka, announcer)
        self.consumption = Consumption(self.settings, ownership, kafka_output, on_progress)
        self.server.drain = self.consumption.drain
        if self.owner.metrics_port is not None:
            self._listen_for_metrics(self.owner.metrics_port)
        # A daemon: were the loop torn down amid its start, only SIGKILL could end the process.
        self._thread = threading.Thread(target=self._fold, name="fold", daemon=True)
        self._thread.start()
        return address

    def _listen_for_metrics(self, port: int) -> None:
        try:
            host = self.owner.metrics_host or self.owner.host
            options = monitoring_options(self.owner, host)
            self._metrics = serve_metrics(self.consumption, self.server, (host, port), **options)
        except OSError as error:
            raise OwnerError(
                f"cannot listen on {self.owner.host}:{port} for metrics: {error.strerror or error}",
                hint="set consumer.metrics_port to a free port",
                code="cannot_listen",
            ) from error
        self.metrics_address = f"{announced_host(host)}:{self._metrics.server_address[1]}"

    def _fold(self) -> None:
        try:
            self.consumption.run()
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self.folding.set_exception(error)
        else:
            self.folding.set_result(None)
        finally:
            if not self.folding.done():  # librdkafka can raise an object that is not an exception
                self.folding.set_exception(RuntimeError("folding ended without an exception"))

    async def _make_checkpoints(self, partitions: list[Partition]) -> list[CheckpointPlace]:
        root = self.settings.checkpoints or self.settings.data_dir / CHECKPOINTS_NAME
        work = self.consumption.call(lambda: [make_checkpoint(root, each) for each in partitions])
        return await asyncio.wrap_future(work)

    async def stop(self) -> None:
        """Stops folding (commit, withdraw, leave the group), then answering. Raises the fold's error if it failed."""
        try:
            self.consumption.stop()
            if self._thread is not None:
                await asyncio.wrap_future(self.folding)
        finally:
            await self.server.stop()
            if self._metrics is not None:
                self._metrics.shutdown()
                self._metrics.server_close()
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None


def monitoring_options(owner: OwnerSettings, host: str) -> dict[str, Any]:
    """How metrics are guarded on ``host``: on loopback everybody may see them. Raises as `check_owner`."""
    check_owner(host, owner.access, owner.files, plain=owner.plain, what="the metrics")
    if is_loopback(host):
        return {"version": owner.version}
    return {"version": owner.version, "access": owner.access, "files": owner.files}


async def listen_again(server: OwnerServer, host: str, port: int, data_dir: Path) -> tuple[str, int]:
    """Listens; with ``port`` 0 where this data directory's process listened before, if that is free.

    Fronts try the last address of a partition, and so find the process again before it has announced itself.
    """
    path = data_dir / PORT_NAME
    if not port and (before := _port_in(path)):
        with suppress(OwnerError):
            return await server.start(host, before)
    bound = await server.start(host, port)
    if not port:
        with suppress(OSError):  # it only costs reads of the source after the next start
            path.write_text(str(bound[1]))
    return bound


def _port_in(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return 0
    return int(text) if text.isascii() and text.isdigit() and int(text) < 1 << 16 else 0


def make_checkpoint(root: Path, partition: Partition) -> CheckpointPlace:
    """Makes a checkpoint at ``root/<keyspace>/<partition>/<offset>``, or reuses its own of the same offset.

    One that was there before the store was opened may be of another store. Raises `StoreError`, `OwnerError`.
    """
    if partition.dead_letters_pending:
        raise OwnerError(
            f"{partition.name}: a dead letter is not in its topic yet, so nothing may be committed",
            hint="ask again once Kafka accepts it",
            code="too_busy",
        )
    parent = root / partition.keyspace / str(partition.number)
    try:
        with held_alone(parent) as is_alone:
            if not is_alone:  # workers have one root, and who hands a partition over has it, too
                raise OwnerError(
                    f"{partition.name}: another worker makes a checkpoint of it", hint="ask again", code="too_busy"
                )
            return _checkpoint_in(parent, partition)
    except OSError as error:
        raise store_error(error, str(parent)) from error


def _checkpoint_in(parent: Path, partition: Partition) -> CheckpointPlace:
    """As `make_checkpoint`, while nobody else makes one there. Raises ``OSError``, too."""
    store = partition.store
    offset = store.state.head.offset
    path = parent / f"{offset:020d}"
    if partition.checkpointed != offset or not path.exists():
        if path.exists() and not remove_unless_kept(path):
            raise OwnerError(
                f"{partition.name}: {path} is an earlier checkpoint, which is still read",
                hint="ask again once `freshet verify` or `freshet snapshots make` has ended",
                code="too_busy",
            )
        for half in parent.glob("*.new"):  # of a process that was killed amid it
            shutil.rmtree(half, ignore_errors=True)
        partition.frozen_epoch = UNKNOWN  # if this fails, what it has frozen is written by the next commit
        store.checkpoint(path)
        keep_leader_epoch(path, store.committed_offset, partition.leader_epoch)
        partition.checkpointed = offset
    others = sorted(each for each in parent.iterdir() if each.name.isdigit() and each != path)
    of_topic = [each for each in others if _is_of(each, store.manifest.topic_id)]
    for old in set(others) - set(of_topic[len(of_topic) - CHECKPOINTS_KEPT + 1 :]):
        with suppress(OSError):
            remove_unless_kept(old)
    return CheckpointPlace(partition.number, str(path), offset)


def _is_of(checkpoint: Path, topic_id: str) -> bool:
    """Whether a checkpoint is of this topic, or can't be read, so that nobody knows."""
    try:
        found = read_manifest(checkpoint)
    except StoreError:
        return True
    return found is not None and found.topic_id == topic_id


def _lock_data_dir(data_dir: Path) -> int:
    """Locks the data directory. A second process with its member id would evict the first one from the group."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        return lock_directory(data_dir, "data directory")
    except (FileNotFoundError, NotADirectoryError, FileExistsError) as error:
        raise StoreError(
            f"cannot create {data_dir}: {error.strerror}", hint="set data_dir to a directory", code="store_denied"
        ) from error
    except OSError as error:
        found = store_error(error, str(data_dir))
        if isinstance(found, RetryableStoreError):  # its hint says that the process goes on by itself
            hint = "make the directory writable, with free space, and start the process again"
            found = StoreError(str(found), hint=hint, code=found.code)
        raise found from error


def announced_host(host: str) -> str:
    """The host to announce: this machine's name for a wildcard address."""
    if is_loopback(host) or host not in ("0.0.0.0", "::"):
        return f"[{host}]" if ":" in host else host
    return socket.gethostname()
