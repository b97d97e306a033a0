"""Responses: their headers, and what of them a reader has already (ETag)."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec
import xxhash
from starlette.types import Send

from serving.answers import (
    RawObjects,
    RawRangeAnswer,
    RawRowAnswer,
    RawRowBatch,
    RawTableAnswer,
    RawTableBatch,
    encode,
    encode_problem,
)
from serving.client.answers import (
    KeptAnswer,
    ListsAnswer,
    LocationAnswer,
    TableAnswer,
)
from serving.client.privileges.answers import PrivilegesAnswer, RoleGrantsAnswer, RolesAnswer
from serving.errors import ReadError
from serving.http.status.login import CHALLENGE
from tokens.errors import one_line

JSON = b"application/json"
PROBLEM = b"application/problem+json"
HTML = b"text/html; charset=utf-8"
RETRY_AFTER_S = 1
"""Told with 429 and 503: what is away for a moment is mostly back after it."""
Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
Answer: TypeAlias = (
    RawRowAnswer
    | KeptAnswer
    | RawRangeAnswer
    | RawTableAnswer
    | RawObjects
    | RawRowBatch
    | RawTableBatch
    | LocationAnswer
    | ListsAnswer
    | RolesAnswer
    | RoleGrantsAnswer
    | PrivilegesAnswer
)

_EVERYWHERE: Headers = ((b"cache-control", b"no-store"), (b"vary", b"Freshet-Token"))
"""An answer is proved for one token, at one time: no cache on the way may give it to anybody else."""


_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Headers = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
"""Of a page, which may load what is in ``serving/http/status/files``, and nothing else."""


class Response(NamedTuple):
    """A complete HTTP response. ``why``: of an answer. ``etag``: of what is read, if it can be compared.

    ``from_source``: how many rows, objects or named things of it the source was asked for.
    """

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: Headers = ()
    why: str = ""
    etag: str = ""
    from_source: int = 0

    @property
    def taken_bytes(self) -> int:
        """What its caller pays for."""
        return len(self.body)


def answer_response(
    answer: Answer, status: int = 200, etag: str = "", asked: int = 1, from_source: int | None = None
) -> Response:
    """The response that carries ``answer``, with its proof in the headers as well.

    ``asked``: how many rows, objects or named things the source was asked for, if it was. ``from_source``: of a batch,
    whose elements are of both.
    """
    headers: Headers = (
        (b"freshet-token", answer.token.encode()),
        (b"freshet-freshness", answer.freshness.encode()),
        (b"freshet-served-from", answer.served_from.encode()),
    )
    if etag:
        headers = (*headers, (b"etag", etag.encode()))
    if from_source is None:
        from_source = max(1, asked) if answer.served_from == "source" else 0
    return Response(status, encode(answer), headers=headers, why=answer.why, etag=etag, from_source=from_source)


def plain_response(answer: msgspec.Struct) -> Response:
    """The response that carries ``answer``, which is no read and has no proof."""
    return Response(200, encode(answer))


def html_response(html: str, status: int = 200) -> Response:
    """A page."""
    return Response(status, html.encode(), HTML, PAGE_HEADERS)


def read_response(answer: RawRowAnswer | RawTableAnswer | ReadError) -> Response:
    """200, or 404 if the row or table is known not to exist. Raises ``answer`` if it is an error."""
    if isinstance(answer, ReadError):
        raise answer
    return answer_response(answer, 200, _etag(answer)) if answer.found else answer_response(answer, 404)


def problem_response(error: ReadError) -> Response:
    """The response that ``error`` is to a reader: JSON, or the page that it has."""
    if error.page:
        return html_response(error.page, error.status)
    headers: Headers = ()
    if error.allow:
        headers = ((b"allow", error.allow.encode()),)
    elif error.status == 401:
        headers = ((b"www-authenticate", CHALLENGE),)
    elif error.file_bytes is not None:
        headers = ((b"content-range", b"bytes */%d" % error.file_bytes),)
    elif error.status in (429, 503):
        headers = ((b"retry-after", b"%d" % max(RETRY_AFTER_S, error.retry_after_s)),)
    if error.token is not None:
        headers = (*headers, (b"freshet-token", error.token.encode()))
    return Response(error.status, encode_problem(error), PROBLEM, headers)


def unless_held(response: Response, held: str) -> Response:
    """304 without a body if ``held``, the request's ``If-None-Match``, names what the response carries.

    The read has been made and proved all the same: its token, freshness and reason are in the headers.
    """
    if not response.etag:
        return response
    if held.strip() != "*" and response.etag not in (each.strip().removeprefix("W/") for each in held.split(",")):
        return response
    why = one_line(response.why).encode("ascii", "backslashreplace")
    return response._replace(status=304, body=b"", headers=(*response.headers, (b"freshet-why", why)))


async def send_response(send: Send, response: Response) -> None:
    """Sends a complete response."""
    headers = [*_EVERYWHERE, *response.headers]
    if response.status not in (204, 304):
        headers += [(b"content-type", response.content_type), (b"content-length", b"%d" % len(response.body))]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


def _etag(answer: RawRowAnswer | RawTableAnswer) -> str:
    """A strong tag of what was read. The proof around it is new in every answer, and is in the headers."""
    read = bytes(answer.value)
    if isinstance(answer, TableAnswer):
        read += f"\0{answer.table_id}\0{answer.write_ids}".encode()
    elif answer.event_token is not None or answer.fresher is not None:
        read += f"\0{answer.event_token}\0{answer.fresher}".encode()
    return f'"{xxhash.xxh3_128_hexdigest(read)}"'
