"""Credentials: which secret or certificate gives what, and until when."""

from __future__ import annotations

import pytest

from stream.access.grants import ANYONE, Access, AccessRefused, Credential, Grant, bearer_of, digest_of, new_secret
from stream.access.listening import OpenListenRefused, PlainListenRefused, check_listener

SECRET = b"freshet_of-a-test"
READER = Grant("reader", frozenset({"read"}), frozenset({"shop"}))


def access(grant: Grant = READER, now_s: float = 0.0, subject: str = "") -> Access:
    """One credential, at a moment."""
    return Access([Credential(grant, "" if subject else digest_of(SECRET), subject)], clock=lambda: now_s)


def test_without_credentials_everybody_may_do_everything() -> None:
    """A listener on loopback works as it did before there were tokens."""
    assert Access().of(b"") is ANYONE
    assert ANYONE.may("admin")
    assert ANYONE.sees("shop")


@pytest.mark.parametrize(
    "secret", [b"", SECRET[:-1], SECRET + b"x", SECRET.upper(), "gültig".encode(), b"\xff\0", b"x" * (1 << 20)]
)
def test_only_the_exact_secret_counts(secret: bytes) -> None:
    """Empty, shortened, lengthened, not ASCII, of a megabyte: refused, and nothing else happens."""
    with pytest.raises(AccessRefused):
        access().of(secret)
    assert access().of(SECRET) is READER


def test_the_hash_is_no_secret() -> None:
    """Who reads the settings can't ask with what stands there."""
    with pytest.raises(AccessRefused):
        access().of(digest_of(SECRET).encode())


def test_expiry_says_so_and_names_the_clock() -> None:
    """A clock that is off by a day is found by the message."""
    grant = Grant("reader", frozenset({"read"}), expires_s=86_400.0)
    assert access(grant, 86_399.0).of(SECRET) is grant
    with pytest.raises(AccessRefused, match=r"reader expired at 1970-01-02T00:00:00Z; the clock here says 1970-01-03"):
        access(grant, 172_800.0).of(SECRET)


@pytest.mark.parametrize(
    ("roles", "keyspaces", "allowed"),
    [
        ({"read"}, None, {"read", "metrics", "any"}),
        ({"read"}, {"shop"}, {"read", "any"}),
        ({"fill"}, None, {"fill", "any"}),
        ({"metrics"}, {"shop"}, {"metrics", "any"}),
        ({"admin"}, None, {"read", "fill", "admin", "metrics", "any"}),
    ],
)
def test_a_role_gives_what_it_says(roles: set[str], keyspaces: set[str] | None, allowed: set[str]) -> None:
    """Metrics are of all keyspaces: a reader of one does not see them."""
    grant = Grant("x", frozenset(roles), frozenset(keyspaces) if keyspaces else None)
    assert {role for role in ("read", "fill", "admin", "metrics", "any") if grant.may(role)} == allowed


def test_a_certificate_is_known_by_its_exact_name() -> None:
    """No part of a name, no other case, and no secret that is wrong."""
    known = access(subject="front-1.internal")
    assert known.of(b"", ["other", "front-1.internal"]) is READER
    for names in ([], ["front-1"], ["FRONT-1.internal"], ["x.front-1.internal"]):
        with pytest.raises(AccessRefused):
            known.of(b"", names)
    with pytest.raises(AccessRefused):
        known.of(b"wrong", ["front-1.internal"])


def test_a_rotation_refuses_nobody() -> None:
    """The old and the new secret count side by side, then only the new one."""
    old, new = new_secret().encode(), new_secret().encode()
    accepted = Access([Credential(READER, digest_of(old))])
    accepted.replace([Credential(READER, digest_of(each)) for each in (old, new)])
    assert accepted.of(old) is accepted.of(new) is READER
    accepted.replace([Credential(READER, digest_of(new))])
    assert accepted.of(new) is READER
    with pytest.raises(AccessRefused):
        accepted.of(old)


def test_a_change_never_opens_a_listener() -> None:
    """Settings that lost their tokens, as another file has none, change nothing."""
    accepted = access()
    with pytest.raises(AccessRefused, match="no token is left"):
        accepted.renew([])
    assert accepted.of(SECRET) is READER


@pytest.mark.parametrize(
    ("header", "secret"),
    [(b"Bearer s", b"s"), (b"bearer  s ", b"s"), (b"", b""), (b"Basic s", b"\0"), (b"Bearer", b"\0"), (b"s", b"\0")],
)
def test_only_the_bearer_scheme_carries_a_secret(header: bytes, secret: bytes) -> None:
    """Another scheme is a wrong secret, not none: a certificate does not stand for it."""
    assert bearer_of(header) == secret


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org", "localhost.example.org", ""])
def test_beyond_this_machine_a_listener_needs_credentials_and_tls(host: str) -> None:
    """Nothing is exposed by accident; plain TCP only if it is said."""
    told = {"what": "the read API", "section": "serve", "setting": "[serve.tokens.NAME]"}
    with pytest.raises(OpenListenRefused) as opened:
        check_listener(host, has_access=False, is_encrypted=True, **told)
    with pytest.raises(PlainListenRefused) as plain:
        check_listener(host, has_access=True, is_encrypted=False, **told)
    assert (opened.value.code, plain.value.code) == ("refuse_open_listen", "refuse_plain_listen")
    assert "serve.plain = true" in plain.value.hint
    check_listener(host, has_access=True, is_encrypted=True, **told)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8", "[::1]"])
def test_loopback_needs_neither(host: str) -> None:
    """On loopback a listener starts without settings."""
    check_listener(host, what="x", section="serve", setting="y", has_access=False, is_encrypted=False)


@pytest.mark.parametrize(
    ("now", "keeps"),
    [
        (Grant("a", frozenset({"read"}), frozenset({"shop"}), 5.0), True),
        (Grant("a", frozenset({"read", "fill"}), frozenset({"shop", "bank"})), True),
        (Grant("a", frozenset({"admin"})), True),
        (Grant("b", frozenset({"read"}), frozenset({"shop"})), False),
        (Grant("a", frozenset({"fill"}), frozenset({"shop"})), False),
        (Grant("a", frozenset({"read"}), frozenset({"bank"})), False),
    ],
)
def test_a_change_that_takes_nothing_away_covers_what_was(now: Grant, keeps: bool) -> None:
    """Streams of a token go on when it gets more, or longer; the time is looked at by itself."""
    before = Grant("a", frozenset({"read"}), frozenset({"shop"}), 3.0)
    assert now.covers(before) is keeps
    assert not before.covers(Grant("a", frozenset({"read"})))  # of all keyspaces
