"""By which name a listener is asked that asks for no credential.

Such a listener trusts whoever reaches it from this machine. A browser does, and pages of anywhere have it send
requests. What they ask by a name of their own that leads here (DNS rebinding) is of their own site to the browser: they
could read the answer.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from functools import lru_cache


def foreign_name(host: bytes, names: Collection[str] = ()) -> str:
    """The name in a header ``Host`` if it may be somebody else's; "": it is this machine's, or one of ``names``."""
    if _is_own(host) or (asked := _name_in(host)) in names:
        return ""
    return asked


def _name_in(host: bytes) -> str:
    """Of a header ``Host``, without the port."""
    name = host.decode("latin-1").lower()
    return name.partition("]")[0].removeprefix("[") if name.startswith("[") else name.partition(":")[0].rstrip(".")


@lru_cache(1_024)
def _is_own(host: bytes) -> bool:
    """Whether no name service elsewhere says where ``host`` leads: none at all, an address, a name without a dot."""
    name = _name_in(host)
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
