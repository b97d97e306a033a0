"""Files of certificates that change at an awkward moment: the one of before goes on, and the next one is used."""

from __future__ import annotations

import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from structlog.testing import capture_logs

from stream.access.certificates import Certificates
from tests.access.certifying import write


def serial(context: ssl.SSLContext, files: Certificates) -> int:
    """Of the certificate that a client of ``context`` is shown."""
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    shown = context.wrap_bio(into, out, server_side=True)
    asking = ssl.create_default_context(cafile=files.ca).wrap_bio(out, into, server_hostname="127.0.0.1")
    for each in (asking, shown, asking):
        try:
            each.do_handshake()
        except ssl.SSLWantReadError:
            continue
    found = asking.getpeercert(binary_form=True)
    assert found
    return x509.load_der_x509_certificate(found).serial_number


def test_files_that_are_away_are_told_once(tmp_path: Path) -> None:
    """Not at every handshake, which would fill the log; when they are back, they are used."""
    authority = trustme.CA()
    files = write(authority, tmp_path, "server", "127.0.0.1")
    context = files.server()
    assert context is not None
    before = serial(context, files)
    Path(files.certificate).unlink()
    with capture_logs() as told:
        assert [serial(context, files) for _ in range(3)] == [before] * 3
    assert [each["event"] for each in told] == ["a new certificate can't be used"]
    write(authority, tmp_path, "server", "127.0.0.1")
    assert serial(context, files) != before


def test_a_change_amid_the_start_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are replaced after they were read are read again: else the old one is used until it expires."""
    authority, load = trustme.CA(), Certificates.load
    files = write(authority, tmp_path, "server", "127.0.0.1")

    def replaced(self: Certificates, *arguments: Any) -> ssl.SSLContext:
        found = load(self, *arguments)
        monkeypatch.undo()
        write(authority, tmp_path, "server", "127.0.0.1", "longer.internal")  # of another size, whatever the clock says
        return found

    monkeypatch.setattr(Certificates, "load", replaced)
    context = files.server()
    assert context is not None
    wanted = x509.load_pem_x509_certificate(Path(files.certificate).read_bytes()).serial_number
    assert serial(context, files) == wanted


@pytest.mark.parametrize("with_authority", [False, True])
def test_a_client_without_an_authority_trusts_what_its_machine_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_authority: bool
) -> None:
    """It would trust nobody, and no connection would ever be made; one with an authority trusts no other."""
    trusted: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: trusted.append("the machine's"))
    files = write(trustme.CA(), tmp_path, "client", "127.0.0.1")
    assert files.server() is not None
    assert not trusted
    assert (files if with_authority else replace(files, ca="")).client() is not None
    assert bool(trusted) is not with_authority
