"""The undocumented parts of uvicorn that the front uses: the reason for the upper bound in pyproject.toml."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from serving.client.answers import STATUS_OF_CODE
from serving.http.connection import BoundedConnection
from serving.http.server import FrontServer

OVERRIDDEN = [
    (BoundedConnection, HttpToolsProtocol, "connection_made", "no watch is set over slow heads"),
    (BoundedConnection, HttpToolsProtocol, "data_received", "what a connection holds is not counted"),
    (BoundedConnection, HttpToolsProtocol, "on_message_begin", "every request's bytes count as one head"),
    (BoundedConnection, HttpToolsProtocol, "on_headers_complete", "a busy connection is ended as a slow one"),
    (BoundedConnection, HttpToolsProtocol, "on_body", "a large body is refused as a large head"),
    (BoundedConnection, HttpToolsProtocol, "send_400_response", "bytes that are not HTTP are refused without a code"),
    (FrontServer, uvicorn.Server, "startup", "the log does not say that the front is ready, and where"),
    (FrontServer, uvicorn.Server, "handle_exit", "a second signal ends the front without its lifespan"),
    (FrontServer, uvicorn.Server, "capture_signals", "SIGTERM ends the front as a failure"),
]
ASSIGNED: list[tuple[Callable[..., Any], str, str]] = [
    (HttpToolsProtocol.__init__, "loop", "no watch is set over slow heads"),
    (HttpToolsProtocol.__init__, "pipeline", "requests that wait for their turn on a connection are without number"),
    (HttpToolsProtocol.__init__, "cycle", "a request under way is ended as a slow head"),
    (HttpToolsProtocol.connection_made, "transport", "a refused connection is not closed"),
    (RequestResponseCycle.__init__, "response_complete", "an idle connection is never ended"),
    (uvicorn.Server.__init__, "should_exit", "a signal does not end the front"),
    (uvicorn.Server.startup, "started", "the log does not say that the front is ready"),
    (uvicorn.Server.startup, "servers", "the port that `--port 0` chose is not known"),
]


@pytest.mark.parametrize(("ours", "theirs", "method", "breaks"), OVERRIDDEN)
def test_a_method_that_is_overridden_is_there_with_its_parameters(
    ours: type, theirs: type, method: str, breaks: str
) -> None:
    """A method that the front overrides exists in uvicorn with the same parameters."""
    assert method in vars(ours), f"the table above is old: {ours.__name__} has no {method}"
    original = getattr(theirs, method, None)
    assert original is not None, f"uvicorn has no {method}: {breaks}"
    here, there = (list(inspect.signature(each).parameters) for each in (getattr(ours, method), original))
    assert here == there, f"uvicorn calls {method} otherwise: {breaks}"


@pytest.mark.parametrize(("place", "attribute", "breaks"), ASSIGNED)
def test_an_attribute_that_is_read_is_assigned(place: Callable[..., Any], attribute: str, breaks: str) -> None:
    """An attribute that the front reads is set by uvicorn."""
    assert attribute in place.__code__.co_names, f"{place.__qualname__} sets no {attribute}: {breaks}"


def test_a_refused_connection_has_a_status_line_for_each_status() -> None:
    """uvicorn has a status line for every status that a connection can be refused with."""
    for status in STATUS_OF_CODE.values():
        line = STATUS_LINE[status]
        assert line.startswith(b"HTTP/1.1 %d " % status)
        assert line.endswith(b"\r\n")
