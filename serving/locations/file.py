"""Keeps what is announced in a file, so that a front routes at once after a start, also while Kafka is away.

Written as a whole beside the old one and renamed, so a crash leaves one or the other. What is lost is at most what was
announced in the last `SAVE_S`.
"""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog

from consumers.store.manifest import write_atomically
from serving.locations.directory import TopicDirectory
from serving.locations.places import Location
from serving.locations.refreshing import Locations
from serving.locations.snapshot import Snapshot, decode_snapshot, encode_snapshot
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import describe_topic, locations_topic
from tokens.errors import FreshetError

SAVE_S: Final = 30.0
RETRY_S: Final = 2.0

_log = structlog.get_logger(__name__)


class LocationFile:
    """A file of locations, and the thread that writes it."""

    def __init__(self, path: Path, kafka: KafkaCluster, directory: TopicDirectory, locations: Locations) -> None:
        """What the file has is put into ``locations`` at once."""
        self._path = path
        self._kafka = kafka
        self._directory = directory
        self._locations = locations
        self._stopping = threading.Event()
        self._cluster = ""
        self._kept = read_snapshot(path)
        locations.restore(self._kept.locations)
        self._thread = threading.Thread(target=self._run, name="location file", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Writes it a last time."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._cluster and not self._stopping.is_set():
            self._learn_cluster()
            self._stopping.wait(0.0 if self._cluster else RETRY_S)
        while self._cluster:
            is_last = self._stopping.wait(SAVE_S)
            self._save()
            if is_last:
                return

    def _learn_cluster(self) -> None:
        """What was kept of another installation is given up as soon as Kafka tells which one this is."""
        try:
            self._cluster = describe_topic(self._kafka, locations_topic(self._kafka)).topic_id
        except FreshetError:  # `LocationsReader` has said so already
            return
        if self._kept.cluster not in ("", self._cluster):
            _log.warning("location file of another installation is ignored", path=str(self._path))
            self._locations.distrust_restored()

    def _save(self) -> None:
        _, locations = self._directory.changed(0)
        if not locations:  # nothing was read yet: what is there is better
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, encode_snapshot(self._cluster, locations))
        except OSError as error:
            _log.warning("location file not written", path=str(self._path), reason=str(error))


def read_snapshot(path: Path) -> Snapshot:
    """What the file has; nothing of one that is not there or can't be read, which is logged."""
    nothing: list[Location] = []
    try:
        return decode_snapshot(path.read_bytes())
    except FileNotFoundError:
        return Snapshot("", nothing)
    except (OSError, ValueError) as error:
        _log.warning("location file is ignored", path=str(path), reason=str(error))
        return Snapshot("", nothing)
