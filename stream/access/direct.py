"""Asks what is on this machine without the proxies that the environment names (``http_proxy``).

A proxy would be told the secret that a request shows, and finds its own machine at 127.0.0.1.
"""

from __future__ import annotations

from ssl import SSLContext
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, build_opener


def direct(context: SSLContext | None = None) -> OpenerDirector:
    """Opens URLs as ``urlopen`` does, never through a proxy."""
    return build_opener(ProxyHandler({}), HTTPSHandler(context=context))
