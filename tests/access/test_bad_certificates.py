"""Certificates that must not be believed, by name: either side of our TLS ends the handshake, and says why."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from stream.access.certificates import CertificateError, Certificates
from tests.access.certifying import write

HOST = "127.0.0.1"
DAY = timedelta(days=1)


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Between both sides in memory; raises the error of the side that ends it."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(down, up, server_hostname=HOST), server.wrap_bio(up, down, server_side=True)]
    done: set[int] = set()
    for _ in range(10):
        for number, side in enumerate(sides):
            try:
                side.do_handshake()
                done.add(number)
                side.read(1)
            except ssl.SSLWantReadError:
                continue
    assert done == {0, 1}


def contexts(server: Certificates, client: Certificates) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of an owner that demands a certificate, and of a front that shows one."""
    one, other = server.server(demand=True), client.client()
    assert one is not None
    assert other is not None
    return one, other


def issued(ca: trustme.CA, place: Path, name: str, *identities: str, begins: timedelta, ends: timedelta) -> str:
    """A certificate file that counts from and until so long from now."""
    now = datetime.now(UTC)
    made = ca.issue_cert(*identities, not_before=now + begins, not_after=now + ends)
    made.private_key_and_cert_chain_pem.write_to_path(place / f"{name}.pem")
    return str(place / f"{name}.pem")


def expired(ca: trustme.CA, place: Path, who: str) -> str:
    """It ended yesterday, or the clock here is a day ahead."""
    return issued(ca, place, "expired", who, begins=-9 * DAY, ends=-DAY)


def of_tomorrow(ca: trustme.CA, place: Path, who: str) -> str:
    """It begins tomorrow, or the clock here is a day behind."""
    return issued(ca, place, "tomorrow", who, begins=DAY, ends=9 * DAY)


def self_signed(_: trustme.CA, place: Path, __: str) -> str:
    """Signed by itself, with a key that nobody knows."""
    alone = trustme.CA()
    (place / "alone.pem").write_bytes(alone.private_key_pem.bytes() + alone.cert_pem.bytes())
    return str(place / "alone.pem")


def of_another_authority(_: trustme.CA, place: Path, who: str) -> str:
    """Right in all but who has signed it."""
    return write(trustme.CA(), place, "foreign", who).certificate


@pytest.mark.parametrize("shown_by", ["server", "client"])
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (expired, "certificate has expired"),
        (of_tomorrow, "certificate is not yet valid"),
        (self_signed, "self-signed certificate"),
        (of_another_authority, "unable to get local issuer certificate"),
    ],
)
def test_a_certificate_that_does_not_count_ends_the_handshake(
    tmp_path: Path, shown_by: str, made: Callable[[trustme.CA, Path, str], str], told: str
) -> None:
    """Expired, of a clock that is off by a day, signed by itself or by somebody else: each is named for what it is."""
    ca = trustme.CA()
    server, client = write(ca, tmp_path, "server", HOST), write(ca, tmp_path, "client", "front.internal")
    handshake(*contexts(server, client))
    if shown_by == "server":
        server = Certificates(made(ca, tmp_path, HOST), "", server.ca)
    else:
        client = Certificates(made(ca, tmp_path, "front.internal"), "", client.ca)
    with pytest.raises(ssl.SSLCertVerificationError, match=told):
        handshake(*contexts(server, client))


def test_a_certificate_that_was_swapped_for_another_ones_is_of_the_wrong_host(tmp_path: Path) -> None:
    """Whoever has a front's certificate can't stand for an owner with it."""
    ca = trustme.CA()
    server, client = write(ca, tmp_path, "server", HOST), write(ca, tmp_path, "client", "front.internal")
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(*contexts(Certificates(client.certificate, "", server.ca), client))


def test_a_certificate_with_another_ones_key_is_refused_at_the_start(tmp_path: Path) -> None:
    """A slip of who put the files there."""
    ca = trustme.CA()
    one, other = write(ca, tmp_path, "one", HOST), write(ca, tmp_path, "other", HOST)
    with pytest.raises(CertificateError, match=r"(?i)key.values.mismatch"):
        Certificates(one.certificate, other.certificate, one.ca).server()


@pytest.mark.parametrize("side", ["server", "client"])
def test_an_authority_that_was_revoked_counts_no_more(tmp_path: Path, side: str) -> None:
    """Its file is replaced by that of its successor while both sides run: the next handshake needs the new one."""
    old, new = trustme.CA(), trustme.CA()
    server, client = write(old, tmp_path, "server", HOST), write(old, tmp_path, "client", "front.internal")
    sides = contexts(server, client)
    handshake(*sides)
    revoked = server if side == "server" else client
    new.cert_pem.write_to_path(revoked.ca)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(*sides)
    if side == "server":
        write(new, tmp_path, "client", "front.internal")
        old.cert_pem.write_to_path(client.ca)  # the server's own certificate is still of the old one
    else:
        write(new, tmp_path, "server", HOST)
        old.cert_pem.write_to_path(server.ca)
    handshake(*sides)
