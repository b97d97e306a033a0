"""Frames of the owner protocol: four bytes of length, big-endian, then a message as a msgpack array. No I/O."""

from __future__ import annotations

from typing import Final

import msgspec

from consumers.owner.protocol import Answer, OwnerError, Request

FRAME_BYTES_MAX: Final = 64 << 20
HELLO_BYTES_MAX: Final = 64 << 10
"""Largest frame before the greeting is complete."""
PREFIX_BYTES: Final = 4

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


def encode_frame(message: Request | Answer) -> bytes:
    """``message`` as a frame with its length prefix. Raises `OwnerError` ``frame_too_large``."""
    body = _encoder.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise OwnerError(
            f"a frame of {len(body)} bytes is larger than the limit of {FRAME_BYTES_MAX}",
            hint="ask for fewer keys",
            code="frame_too_large",
        )
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


def decode_request(body: bytes | memoryview) -> Request:
    """The request in a frame's body. Raises ``msgspec.DecodeError`` (a ``ValueError``)."""
    try:
        return _requests.decode(body)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def decode_answer(body: bytes | memoryview) -> Answer:
    """The answer in a frame's body. Raises ``msgspec.DecodeError``."""
    try:
        return _answers.decode(body)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def id_in(body: bytes | memoryview) -> int:
    """The request id in a frame whose rest may be invalid, 0 if there is none."""
    try:
        match msgspec.msgpack.decode(body):
            case [_, int(number), *_] if not isinstance(number, bool):
                return number
    except (ValueError, RecursionError):
        return 0
    return 0


class FrameBuffer:
    """Assembles frames from a byte stream. ``frame_bytes_max`` bounds one frame; it may be changed."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._data = bytearray()

    def feed(self, data: bytes, frames_max: int = -1) -> list[bytes]:
        """The bodies of the frames that ``data`` completes. Raises `OwnerError` ``frame_too_large``.

        ``frames_max``: how many at most (-1: all); the others come with the next call.
        """
        buffer: bytes | bytearray = self._data
        if buffer:
            buffer += data
        else:  # mostly ``data`` is whole frames
            buffer = data
        bodies: list[bytes] = []
        at, size = 0, len(buffer)
        while size - at >= PREFIX_BYTES and len(bodies) != frames_max:
            length = int.from_bytes(buffer[at : at + PREFIX_BYTES], "big")
            if length > self.frame_bytes_max:
                raise OwnerError(
                    f"the other side announced a frame of {length} bytes, at most {self.frame_bytes_max} are allowed",
                    hint="check that this is the owner's port",
                    code="frame_too_large",
                )
            if size - at - PREFIX_BYTES < length:
                break
            at += PREFIX_BYTES
            bodies.append(bytes(buffer[at : at + length]))
            at += length
        if buffer is data:
            self._data += data[at:]
        elif at:
            del self._data[:at]
        return bodies
