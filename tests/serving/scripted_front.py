"""A front that answers a client by a script, and the answers that it gives."""

from __future__ import annotations

import msgspec

from serving.answers import absence_fields, encode_problem
from serving.client.answers import RowAnswer
from serving.client.wire import HttpRequest
from serving.errors import ReadError
from serving.http.responses import read_response
from tokens import Position, Vector


def vector(**components: str) -> Vector:
    """``shop="1 0-1-5"``: shard ``shop/0`` at epoch 1."""
    found = {}
    for shard, text in components.items():
        epoch, gtid = text.split()
        found[f"{shard}/0"] = (int(epoch), Position.parse(f"MariaDB/{gtid}"))
    return Vector(found)


def row(token: Vector, image: bytes | None = b'{"id":7}') -> tuple[int, bytes]:
    found = image is not None
    missing = absence_fields("" if found else "no row")
    answer = RowAnswer("cache", "fresh", "why", str(token), found, msgspec.Raw(image or b"null"), **missing)
    status, body, *_ = read_response(answer)
    return status, body


def problem(code: str, token: str | None = None) -> tuple[int, bytes]:
    error = ReadError(code, "because", token=token)
    return error.status, encode_problem(error)


class Front:
    """Answers requests in order and keeps them."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        self.answers = list(answers)
        self.requests: list[HttpRequest] = []

    def __call__(self, request: HttpRequest) -> tuple[int, bytes]:
        self.requests.append(request)
        return self.answers.pop(0)
