"""Routes as values, and everything that follows from them: matching, parsing and refusing requests.

`serving.http.routes` is the table of all routes. `serving.http.openapi` generates their description.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain, zip_longest
from typing import Any, Generic, TypeVar, get_args, get_type_hints
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from serving.errors import ASKED_IN_VAIN, ReadError
from serving.http.admission.asked import ADMINISTERED
from serving.http.front import Front
from serving.http.guard import CALLER, METER, read_body
from serving.http.limits import ANSWER_BYTES, QUERY_FIELDS_MAX, SOURCE_COST
from serving.http.responses import Response, send_response, unless_held
from serving.http.status.login import check_form
from serving.http.streaming.sending import Streaming
from stream.access.grants import ADMIN, FILL, METRICS, NOBODY, READ, Grant

P = TypeVar("P")
B = TypeVar("B")

_PLACEHOLDER = re.compile(r"\{(\w+)(:raw|:rest)?\}")
_INTEGER = re.compile(r"0*([0-9]+)|(?=-)(-[1-9][0-9]*)", re.ASCII)
_FLAGS = {"": "true", "yes": "true", "no": "false"}
"""Spellings of a flag that msgspec does not accept, → one that it does."""


@dataclass(frozen=True, kw_only=True)
class Route(Generic[P, B]):
    """One method at one path. GET answers HEAD as well.

    ``path``: a segment ``{name}`` is decoded, ``{name:raw}`` stays percent-encoded, ``{name:rest}`` is
    decoded and has all that follows, slashes included. ``parameters``: a Struct with a
    field for each name in the path and each query parameter; None: the query string is ignored. Those that it doesn't
    name go into its field ``columns``, if it has one, and ``where.NAME`` as NAME. ``body``: a Struct, or None.
    ``answer``: a Struct, or None for plain text; ``content_types`` of it. ``headers``: parameter → the header that
    stands for it where it is not given. ``errors``: the handler's codes, in addition to those of every route
    and those that follow from ``parameters`` and ``body``. ``is_file``: the answer is a file's bytes, or ranges of it.
    ``elements``: how many parameters and body name, each of which costs the caller as much as a request.
    ``is_form``: only a page of the front may send it (`serving.http.status.login.check_form`).
    ``role``: what the caller needs (`stream.access.grants`); "": to read, for PUT to fill; None: nothing.
    """

    method: str
    path: str
    handler: Callable[[Front, P, B], Awaitable[Response | Streaming]]
    parameters: type[P] | None = None
    body: type[B] | None = None
    answer: type[msgspec.Struct] | None = None
    is_file: bool = False
    content_types: tuple[str, ...] = ("application/json",)
    headers: Mapping[str, bytes] = field(default_factory=dict)
    errors: tuple[str, ...] = ()
    elements: Callable[[P, B], int] | None = None
    role: str | None = ""
    is_form: bool = False
    name: str
    tag: str
    summary: str
    text: str
    returns: str

    @cached_property
    def path_names(self) -> tuple[str, ...]:
        """The names in the path."""
        return tuple(name for name, _ in _PLACEHOLDER.findall(self.path))

    @cached_property
    def _decoded(self) -> tuple[str, ...]:
        return tuple(name for name, raw in _PLACEHOLDER.findall(self.path) if raw != ":raw")

    @cached_property
    def template(self) -> str:
        """The path as OpenAPI writes it."""
        return _PLACEHOLDER.sub(r"{\1}", self.path)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches a request's path as sent, with a group for each name."""
        literals = [re.escape(literal) for literal in _PLACEHOLDER.sub("\0", self.path).split("\0")]
        groups = [f"(?P<{name}>{'.+' if how == ':rest' else '[^/]*'})" for name, how in _PLACEHOLDER.findall(self.path)]
        return re.compile("".join(chain.from_iterable(zip_longest(literals, groups, fillvalue=""))), re.DOTALL)

    @cached_property
    def token_in_body(self) -> bool:
        """Whether the session's token is a field of the body. Else it is a parameter, or the route takes none."""
        return self.body is not None and "token" in self.body.__struct_fields__  # type: ignore[attr-defined]

    @cached_property
    def takes_token(self) -> bool:
        """Whether the header ``Freshet-Token`` of a request counts."""
        fields = self.parameters.__struct_fields__ if self.parameters is not None else ()  # type: ignore[attr-defined]
        return self.token_in_body or "token" in fields

    @property
    def needed_role(self) -> str | None:
        """The role that a caller needs."""
        return (FILL if self.method == "PUT" else READ) if self.role == "" else self.role

    def admit(self, caller: Grant) -> None:
        """Raises `ReadError` ``forbidden``."""
        needed = self.needed_role
        if needed is not None and not caller.may(needed):
            raise ReadError("forbidden", f"{caller.name} has no role {needed}")

    async def run(self, front: Front, path: dict[str, str], scope: Scope, receive: Receive) -> Response | Streaming:
        """Answers one request. ``path``: the names in the path → their segments as sent. Raises `ReadError`."""
        parameters: Any = None
        if self.parameters is not None:
            for name in self._decoded:
                path[name] = path_text(path[name], name)
            parameters = parameters_of(self.parameters, path, scope["query_string"])
            for name, header in self.headers.items():
                if not getattr(parameters, name) and (value := header_of(scope, header)):
                    setattr(parameters, name, value)
            if self.is_file and scope["method"] == "HEAD":
                parameters.range = ""  # RFC 9110, 14.2: only GET has ranges
        body: Any = None
        if self.body is not None:
            body = body_of(self.body, await read_body(scope, receive, front.limits.body_bytes_max))
        asked = 1
        if self.elements is not None and METER in scope:
            asked = max(1, self.elements(parameters, body))
            scope[METER].pay_more(asked - 1)
        if self.takes_token and (seen := header_of(scope, b"freshet-token")):
            carrier = body if self.token_in_body else parameters
            carrier.token = f"{carrier.token},{seen}" if carrier.token else seen
        try:
            return await self.handler(front, parameters, body)
        except ReadError as error:
            if METER in scope and error.code in ASKED_IN_VAIN:
                scope[METER].owe(asked * (SOURCE_COST - 1))
            raise


class Resource(BaseRoute):
    """The routes at one path, by method, for Starlette's router.

    Matched by the path as sent, since a key may hold encoded slashes and commas.
    """

    def __init__(self, front: Front, routes: Iterable[Route[Any, Any]]) -> None:
        self._front = front
        self._routes = {route.method: route for route in routes}
        self._matches = next(iter(self._routes.values())).pattern.fullmatch

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Matches the path only: `handle` refuses methods that the path does not have."""
        sent = scope.get("raw_path") or scope["path"].encode()
        found = self._matches(sent.decode("latin-1"))
        return (Match.FULL, {"path_params": found.groupdict()}) if found else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers. Raises `ReadError`, which the guard turns into an answer."""
        method = scope["method"]
        route = self._routes.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted({*self._routes, "OPTIONS", *(["HEAD"] if "GET" in self._routes else [])}))
            if method == "OPTIONS":
                await send_response(send, Response(204, b"", headers=((b"allow", allowed.encode()),)))
                return
            refusal = ReadError("method_not_allowed", f"{scope['path']} does not support {method}, only {allowed}")
            refusal.allow = allowed
            raise refusal
        caller = scope.get(CALLER, NOBODY)
        scope[ADMINISTERED] = route.needed_role == ADMIN
        route.admit(caller)
        if route.is_form:
            check_form(caller, header_of(scope, b"sec-fetch-site"))
        is_of_all = route.role in (None, METRICS)  # whoever may see metrics sees those of all keyspaces together
        front = self._front if is_of_all else self._front.seen_by(caller)
        response = await route.run(front, scope["path_params"], scope, receive)
        if METER in scope:
            asked = 0 if isinstance(response, Streaming) else response.from_source * (SOURCE_COST - 1)
            sent = 0 if method == "HEAD" else response.taken_bytes // ANSWER_BYTES
            scope[METER].owe(asked + sent)
        if isinstance(response, Streaming):
            await response.send(receive, send, head_only=method == "HEAD")
            return
        if response.etag and (held := header_of(scope, b"if-none-match")):
            response = unless_held(response, held)
        await send_response(send, response)


def header_of(scope: Scope, name: bytes) -> str:
    """A request's header; of several with this ``name`` all values, separated by commas. "" if there is none."""
    values = [value for each, value in scope["headers"] if each == name and value]
    return b",".join(values).decode("latin-1") if values else ""


def path_text(segment: str, name: str) -> str:
    """A segment of a path, percent-decoded. Raises `ReadError` ``bad_parameter``."""
    text = segment
    if "%" in segment or not segment.isascii():
        try:
            text = unquote_to_bytes(segment.encode("latin-1")).decode()
        except UnicodeDecodeError as error:
            raise ReadError("bad_parameter", f"{name} in the path is not UTF-8") from error
    if not text or "\0" in text:
        raise ReadError("bad_parameter", f"{name} in the path {'contains a NUL character' if text else 'is empty'}")
    return text


def parameters_of(kind: type[P], path: Mapping[str, str], query: bytes) -> P:
    """The path's names and the query string as a ``kind``. Raises `ReadError` ``bad_parameter``.

    An unknown parameter is refused: a misspelled ``token`` must not become a read without a token.
    """
    found = {**path}
    for name, value in _pairs(query):
        if name in found:
            raise ReadError("bad_parameter", f"parameter {name!r} is given twice")
        found[name] = value
    flags, integers, takes_columns = _fields_of(kind)  # type: ignore[arg-type]  # mypy takes no type[P] for hashable
    columns = _take_columns(kind, found) if takes_columns else None
    for name in flags:
        if name in found:
            found[name] = _FLAGS.get(found[name].lower(), found[name])
    for name in integers:
        if name in found:
            found[name] = _integer(name, found[name])
    try:
        return msgspec.convert(found if columns is None else {**found, "columns": columns}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _refusal(kind, path, found, str(error)) from error


def body_of(kind: type[B], body: bytes) -> B:
    """A JSON body as a ``kind``. Raises `ReadError` ``bad_body``."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise ReadError("bad_body", f"the body does not match /openapi.json: {error}") from error


def _pairs(query: bytes) -> list[tuple[str, str]]:
    """As `urllib.parse.parse_qsl`, in a third of its time."""
    if not query:
        return []
    try:
        fields = query.decode("ascii").split("&")
        if len(fields) > QUERY_FIELDS_MAX:
            raise ValueError(f"more than {QUERY_FIELDS_MAX} fields")
        split = [field.partition("=")[::2] for field in fields if field]
        if b"%" not in query and b"+" not in query:
            return split
        return [(_decoded(name), _decoded(value)) for name, value in split]
    except ValueError as error:
        raise ReadError("bad_parameter", f"the query string cannot be read: {error}") from error


def _decoded(text: str) -> str:
    """As `urllib.parse.unquote_plus` of ASCII, without what that does for other text. Most have nothing to decode."""
    if "+" in text:
        text = text.replace("+", " ")
    return unquote_to_bytes(text).decode() if "%" in text else text


@cache
def _fields_of(kind: type) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Names of the flags, and of the integers; and whether there is a field ``columns``."""
    hints = get_type_hints(kind)
    return (
        tuple(name for name, hint in hints.items() if hint is bool),
        tuple(name for name, hint in hints.items() if hint is int or int in get_args(hint)),
        "columns" in hints,
    )


@cache
def _names_of(kind: type) -> frozenset[str]:
    """Of all parameters. msgspec would work them out anew for each request, which takes longer than the rest of it."""
    return frozenset(each.encode_name for each in msgspec.structs.fields(kind))


def _take_columns(kind: type[Any], found: dict[str, str]) -> dict[str, str]:
    """Takes the parameters out of ``found`` that are columns of a table. Raises `ReadError` ``bad_parameter``."""
    fixed = _names_of(kind) - {"columns"}  # type: ignore[arg-type]  # as above
    columns: dict[str, str] = {}
    for name in found.keys() - fixed:
        column = name.removeprefix("where.")
        if column in columns:
            raise ReadError("bad_parameter", f"column {column!r} is given twice")
        columns[column] = found.pop(name)
    return columns


def _integer(name: str, text: str) -> str:
    """``text`` without leading zeros: msgspec takes none, but would take ``1e3`` and ``1.0``, and round large ones."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        raise ReadError("bad_parameter", f"{name}: Expected `int`, got {text!r}")
    return found[1] or found[2]


def _refusal(kind: type[Any], path: Mapping[str, str], found: Mapping[str, str], why: str) -> ReadError:
    names = _names_of(kind)  # type: ignore[arg-type]  # as above
    for name in found:
        if name not in names:
            hint = f"known: {', '.join(sorted(names - set(path)))}"
            return ReadError("bad_parameter", f"unknown parameter {name!r}", hint=hint)
    reason, _, name = why.removesuffix("`").partition(" - at `$.")
    if name not in found:
        return ReadError("bad_parameter", f"the parameters: {why}")
    return ReadError("bad_parameter", f"{name}: {reason.removesuffix(', got `str`')}, got {found[name]!r}")
