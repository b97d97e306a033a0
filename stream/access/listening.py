"""Where a listener may be: on loopback as it likes, elsewhere with credentials, and encrypted unless it is said."""

from __future__ import annotations

import ipaddress

from tokens.errors import FreshetError


class OpenListenRefused(FreshetError):
    """A listen address that is not loopback, without credentials; code ``refuse_open_listen``."""

    code = "refuse_open_listen"


class PlainListenRefused(FreshetError):
    """A listen address that is not loopback, without TLS; code ``refuse_plain_listen``."""

    code = "refuse_plain_listen"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach ``host``. A name other than localhost counts as open."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_listener(host: str, *, what: str, section: str, setting: str, has_access: bool, is_encrypted: bool) -> None:
    """Raises `OpenListenRefused` or `PlainListenRefused` for a listener beyond this machine.

    ``what`` it is, for the message; ``section`` of its settings; ``setting``: the one that gives it a credential;
    ``has_access``: it asks for a credential; ``is_encrypted``: it has TLS, or may be plain (``section.plain``).
    """
    if is_loopback(host):
        return
    if not has_access:
        raise OpenListenRefused(
            f"{what} would listen on {host} without a token: anyone who can reach it could use it",
            hint=f"listen on 127.0.0.1, or set {setting}",
        )
    if not is_encrypted:
        raise PlainListenRefused(
            f"{what} would listen on {host} without TLS: tokens and data could be read on the way",
            hint=f"set [{section}.tls] certificate, or {section}.plain = true if a proxy or the network encrypts",
        )
