"""What httpx2 is given for a request, the same in both clients."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from ..errors import Unreachable
from ..wire import HttpRequest
from .credentials import Bearer, Tls

if TYPE_CHECKING:
    import httpx2


KEEPALIVE_MAX: Final = 100
"""Connections that are kept for later requests. As many are open as requests are under way: a stream holds one."""
DIRECT: Final = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""As httpx2's mounts: what no proxy of the environment is asked for. It would be told the token, and is elsewhere."""


def options(timeout: float, tls: Tls | None) -> dict[str, Any]:
    import httpx2

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=KEEPALIVE_MAX)
    secured = {"verify": tls.context()} if tls is not None and any(tls) else {}
    return {"timeout": timeout, "limits": limits, "mounts": DIRECT, **secured}


def homes(base_url: str | Sequence[str]) -> Sequence[str]:
    return [base_url] if isinstance(base_url, str) else base_url


def arguments(base_url: str, request: HttpRequest, bearer: Bearer | None = None) -> dict[str, Any]:
    """What httpx2 is given. The URL is whole: else httpx2 parses it three times, a fifth of what a read costs here."""
    query = f"?{urlencode(request.params)}" if request.params else ""
    return {
        "method": request.method,
        "url": f"{base_url}{request.path}{query}",
        "content": request.body or None,
        "headers": dict(request.headers)
        | _traceparent()
        | (bearer.headers() if bearer is not None else {})
        | ({"content-type": "application/json"} if request.body else {}),
    }


def _traceparent() -> dict[str, str]:
    """The application's span, where it uses OpenTelemetry and one is under way, so that the front's is below it."""
    trace = sys.modules.get("opentelemetry.trace")  # an application that has spans has imported it
    context = trace.get_current_span().get_span_context() if trace is not None else None
    if context is None or not context.is_valid:
        return {}
    return {"traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}


def is_away(error: httpx2.HTTPError) -> bool:
    """Whether a front has not answered. One that was not asked, for want of a free connection here, is not away."""
    import httpx2

    return not isinstance(error, httpx2.PoolTimeout)


def is_cut(error: httpx2.HTTPError) -> bool:
    """Whether the connection ended under a request: mostly one that was kept, and that the front just closes."""
    import httpx2

    return isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError | httpx2.WriteError)


def may_be_busy(error: httpx2.HTTPError) -> bool:
    """Whether a front has only taken too long. One to which no connection comes in that time may be switched off."""
    import httpx2

    return isinstance(error, httpx2.TimeoutException) and not isinstance(error, httpx2.ConnectTimeout)


def unreachable(base_url: str, error: httpx2.HTTPError) -> Unreachable:
    if not is_away(error):
        return Unreachable(f"no connection to {base_url} is free", hint="does the transport limit their number?")
    return Unreachable(f"{base_url} did not answer: {error or type(error).__name__}", hint="is `freshet serve` up?")
