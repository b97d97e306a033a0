"""The owner's side of a directory that processes share: it lets them in for as long as it owns the directory."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serving.bytecache.disk.directory import DirectoryOptions
from serving.bytecache.shared.attached import Attached
from serving.bytecache.shared.joined import Joined
from serving.bytecache.shared.protocol import OwnerGoneError
from tests.serving.bytecache.stores import MIB


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Joined]:
    """Who owns the directory."""
    joined = Joined(tmp_path / "cache", DirectoryOptions(quota=32 * MIB, shards=1))
    yield joined
    joined.close()


def attach(place: Path) -> None:
    """A process comes and goes. Raises `OwnerGoneError` where it is not let in."""
    Attached(place, (), MIB).close()


def test_an_owner_without_a_free_descriptor_lets_processes_in_later(
    owner: Joined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of ``accept`` that is not the owner's end ends nothing: who waits is let in once it is over."""
    monkeypatch.setattr("serving.bytecache.shared.server.PAUSE_S", 0.001)
    accept, errors = socket.socket.accept, [errno.EMFILE, errno.ENFILE, errno.ENOMEM]

    def full(listening: socket.socket) -> Any:
        if errors:
            raise OSError(errors.pop(), "none is free")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", full)
    for _ in range(3):  # the first one was waited for already
        attach(Path(owner.name))
    assert errors == []


def test_an_owner_that_can_have_no_thread_ends_the_connection(owner: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who wanted to attach knows at once, and may try again."""

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("serving.bytecache.shared.server.threading", SimpleNamespace(Thread=NoThread))
        with pytest.raises(OwnerGoneError, match=r"ended|reset|Broken"):
            attach(Path(owner.name))
    attach(Path(owner.name))
