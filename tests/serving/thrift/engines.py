"""An engine's connection to a metastore, or to what looks like one, byte by byte."""

from __future__ import annotations

import socket
from typing import Any, Self

from serving.thrift.messages import Scanner, head_of
from stream.sources.hive.rpc.thrift import message
from stream.sources.hive.structs import Struct

PROCESSOR = ("HIVEFULLACIDREAD", "HIVEFULLACIDWRITE", "EXTREAD", "EXTWRITE", "HIVEBUCKET2", "HIVESQL")
"""Of ``HiveServer2``, in part."""


class Engine:
    """One connection. A context manager."""

    def __init__(self, address: tuple[str, int], timeout_s: float = 60) -> None:
        self._socket = socket.create_connection(address, timeout=timeout_s)
        self._sequence = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self._socket.sendall(data)

    def receive(self) -> bytes:
        """The next message, of which nothing may follow. Raises ``ConnectionResetError`` at the end."""
        data, head = b"", None
        scanner = Scanner()
        while True:
            piece = self._socket.recv(1 << 16)
            if not piece:
                raise ConnectionResetError("the connection has ended")
            data += piece
            if head is None:
                head = head_of(data)
                if head is None:
                    continue
                piece = data[head.size :]
            end = scanner.feed(piece)
            if end is not None:
                assert end == len(piece), "something follows the reply"
                return data

    def call(self, name: str, arguments: Struct, sequence: int | None = None) -> bytes:
        """The bytes of the reply to a call."""
        self._sequence += 1
        self.send(message(name, self._sequence if sequence is None else sequence, arguments))
        return self.receive()


def result_of(reply: bytes) -> Any:
    """What a call returned, as it was written; None: an exception."""
    from stream.sources.hive.structs import decode_struct

    head = head_of(reply)
    assert head is not None
    found = decode_struct(reply[head.size :])
    return found.get(0, (0, None))[1]
