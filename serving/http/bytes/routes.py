"""``GET /v1/bytes/{uri}``: ranges of a remote file, from the byte cache where it is sure of them."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from starlette.types import Receive, Send

from serving.errors import ReadError
from serving.http.bytes.files import File
from serving.http.bytes.ranges import PIECE, Part, names, parts_of, pieces_of, ranges_of
from serving.http.front import Front
from serving.http.responses import Response
from serving.http.route import Route
from serving.http.streaming.sending import Streaming

OCTETS: Final = "application/octet-stream"


class BytesParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of ``/v1/bytes``. All but ``uri`` are usually headers."""

    uri: Annotated[str, Meta(description="A URI below one of the front's roots, percent-encoded or as it is.")]
    range: Annotated[str, Meta(description="As the header `Range`; several ranges make a multipart answer.")] = ""
    if_range: Annotated[str, Meta(description="As the header `If-Range`: an ETag.")] = ""
    if_match: Annotated[str, Meta(description="As the header `If-Match`.")] = ""
    if_none_match: Annotated[str, Meta(description="As the header `If-None-Match`.")] = ""


@dataclass(slots=True)
class FileAnswer(Streaming):
    """A file's bytes. The first piece is read before anything is sent, so that what fails has a status."""

    file: File | None = None
    is_short: bool = True
    """It is one piece."""

    async def send(self, receive: Receive, send: Send, *, head_only: bool = False) -> None:
        """As `Streaming.send`."""
        if not head_only:
            try:
                self.chunks = _again([await anext(self.chunks, b"")], self.chunks)
            except BaseException:
                await self.close()
                raise
            self.headers = (*self.headers, *self._found())
        await Streaming.send(self, receive, send, head_only=head_only)

    def _found(self) -> Iterable[tuple[bytes, bytes]]:
        """What is known of where the bytes came from: for an answer in one piece all, else only that it is long."""
        assert self.file is not None
        tally = self.file.tally
        yield b"freshet-served-from", b"source" if tally.miss_bytes else b"cache"
        if self.is_short:
            for name in ("hits", "misses", "hit_bytes", "miss_bytes"):
                yield f"freshet-{name.replace('_', '-')}".encode(), b"%d" % getattr(tally, name)


async def get_bytes(front: Front, parameters: BytesParameters, _: None) -> Response | Streaming:
    """200, 206, or 304 without a body. Raises `ReadError`."""
    if front.files is None:
        raise ReadError("not_served", "this front has no roots of files")
    file = await front.files.open(parameters.uri)
    try:
        answer = _answer(file, parameters)
    except BaseException:
        await file.close()
        raise
    if isinstance(answer, Response):
        await file.close()
    return answer


def _answer(file: File, given: BytesParameters) -> Response | Streaming:
    etag, size = file.etag, file.size
    headers = [(b"accept-ranges", b"bytes"), *([(b"etag", etag.encode())] if etag else [])]
    if given.if_match and not names(given.if_match, etag, weak=False):
        raise ReadError("precondition_failed", f"{given.uri} has another version now")
    if given.if_none_match and names(given.if_none_match, etag, weak=True):
        return Response(304, b"", headers=tuple(headers))
    asked = None
    if given.range and (not given.if_range or given.if_range.strip() == etag != ""):
        try:
            asked = ranges_of(given.range, size)
        except ReadError as error:
            error.file_bytes = size
            raise
    parts, tail, kind, status = [Part(b"", 0, size)], b"", OCTETS.encode(), 200
    if asked is not None:
        status = 206
        if len(asked) == 1:
            parts = [Part(b"", *asked[0])]
            headers.append((b"content-range", b"bytes %d-%d/%d" % (asked[0][0], asked[0][1] - 1, size)))
        else:
            boundary = secrets.token_hex(16).encode()
            parts, tail = parts_of(asked, size, boundary)
            kind = b"multipart/byteranges; boundary=" + boundary
    taken = sum(part.end - part.start for part in parts)
    headers.append((b"content-length", b"%d" % (taken + sum(len(part.head) for part in parts) + len(tail))))
    chunks, short = _bytes(file, pieces_of(parts), tail), taken <= PIECE
    return FileAnswer(
        kind, chunks, file.close, status=status, headers=tuple(headers), taken_bytes=taken, file=file, is_short=short
    )


async def _again(first: list[bytes], rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    try:
        yield first.pop()
        async for chunk in rest:
            yield chunk
    finally:
        await rest.aclose()


async def _bytes(file: File, pieces: Iterable[list[Part]], tail: bytes) -> AsyncGenerator[bytes]:
    for piece in pieces:
        found = await file.read([(part.start, part.end) for part in piece])
        yield b"".join(each for part, data in zip(piece, found, strict=True) for each in (part.head, data))
    if tail:
        yield tail


BYTES: Final[tuple[Route[BytesParameters, None], ...]] = (
    Route(
        method="GET",
        path="/v1/bytes/{uri:rest}",
        handler=get_bytes,
        parameters=BytesParameters,
        is_file=True,
        headers={
            "range": b"range",
            "if_range": b"if-range",
            "if_match": b"if-match",
            "if_none_match": b"if-none-match",
        },
        errors=(
            *("not_served", "file_not_found", "bad_range", "precondition_failed", "file_changed"),
            *("source_unreachable", "source_failed"),
        ),
        name="getBytes",
        tag="bytes",
        summary="Read a remote file, or ranges of it",
        text="Read through the byte cache. Each request asks the store which version the file has; all bytes of an "
        "answer are of that one. If the file is replaced amid a long answer, the connection ends before it is whole.",
        returns="The file.",
    ),
)
