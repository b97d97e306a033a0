"""What a request asks for, as a line of the audit may say it: the method, what kind of thing, the keyspace.

Pure. Keys and URIs are data, so they are left out; a path that is none of ours could be anything.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

ADMINISTERED: Final = "freshet.administered"
"""Where a request's scope says that its route is for administrators."""
_PATH: Final = re.compile(
    r"/(metrics|openapi\.json|dead-letters(?:/retry|/dismiss)?)"
    r"|/v1/([a-z-]{1,30})(?::[a-z]{1,20})?(?:/([^/]{1,300}))?(?:/.*)?",
    re.DOTALL,
)
_OF_KEYSPACES: Final = frozenset({"rows", "descriptions", "locations"})
_METHOD: Final = re.compile(r"[A-Z]{1,10}")
_QUERY_BYTES_MAX: Final = 2_000


def asked_of(scope: Any) -> tuple[str, str]:
    """(what, the keyspace or catalog; "" if none is named)."""
    method = scope.get("method", "GET")
    found = _PATH.fullmatch(scope["path"])
    what = "another path" if found is None else f"/{found[1]}" if found[1] else f"/v1/{found[2]}"
    keyspace = ""
    if found is not None and found[2] in _OF_KEYSPACES and found[3]:
        keyspace = unquote(found[3]).partition(":")[0]
    elif len(scope["query_string"]) <= _QUERY_BYTES_MAX:
        given = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        keyspace = str(given.get("keyspace", given.get("catalog", "")))
    return f"{method if _METHOD.fullmatch(method) else 'another method'} {what}", keyspace
