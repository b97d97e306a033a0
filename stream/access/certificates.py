"""TLS of our own listeners and clients, from files that may be replaced while a process runs.

Each handshake looks at the files, and uses new ones if they have changed. Half-written or wrong ones are not used: the
log says so once, and the certificate before goes on. TLS 1.2 and up (RFC 9325).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any, Final

import structlog

from stream.access.files import Signature, signature_of
from tokens.errors import FreshetError, one_line

log = structlog.get_logger(__name__)

_FILES_ERRORS: Final = (OSError, ssl.SSLError, ValueError)


class CertificateError(FreshetError):
    """Files of a certificate that can't be used; code ``bad_certificate``."""

    code = "bad_certificate"


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files. ``certificate``: the chain; ``key``: "" if it is in the same file; ``ca``: who signs the other side's.

    A client without ``ca`` trusts what the machine trusts.
    """

    certificate: str = ""
    key: str = ""
    ca: str = ""

    def server(self, *, demand: bool = False) -> ssl.SSLContext | None:
        """For a listener; None without a certificate. Raises `CertificateError`.

        With ``ca`` a client's certificate is verified if it sends one; ``demand``: it must.
        """
        if not self.certificate:
            return None
        mode = ssl.CERT_NONE if not self.ca else ssl.CERT_REQUIRED if demand else ssl.CERT_OPTIONAL
        return Renewed.over(self, ssl.PROTOCOL_TLS_SERVER, mode)

    def client(self) -> ssl.SSLContext | None:
        """For a connection to one of our listeners, whose host is verified; None if nothing is set."""
        return Renewed.over(self, ssl.PROTOCOL_TLS_CLIENT, ssl.CERT_REQUIRED) if self.certificate or self.ca else None

    @property
    def paths(self) -> list[str]:
        """Those that are set."""
        return [path for path in (self.certificate, self.key, self.ca) if path]

    def load(self, protocol: int, mode: ssl.VerifyMode) -> ssl.SSLContext:
        """A context with what the files hold now. Raises `CertificateError`."""
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = mode
        try:
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None, password=_no_password)
            if self.ca:
                context.load_verify_locations(self.ca)
            elif protocol == ssl.PROTOCOL_TLS_CLIENT:
                context.load_default_certs()
        except _FILES_ERRORS as error:
            raise CertificateError(
                f"the certificate can't be used ({', '.join(self.paths)}): {one_line(str(error))}",
                hint="in PEM: the chain, its own certificate first; the key, without a password; the authorities",
            ) from error
        return context


def _no_password() -> str:
    raise ValueError("the key has a password")


class Renewed(ssl.SSLContext):
    """A context that hands every connection to one of the files as they are now.

    asyncio, uvloop and sockets make each connection by `wrap_bio` or `wrap_socket`, so this is where it is renewed.
    """

    _files: Certificates
    _mode: ssl.VerifyMode
    _used: ssl.SSLContext
    _signature: Signature

    @classmethod
    def over(cls, files: Certificates, protocol: int, mode: ssl.VerifyMode) -> Renewed:
        """Raises `CertificateError`: what is wrong at the start is told at the start."""
        found = cls(protocol)
        found._files, found._mode = files, mode
        found._signature = signature_of(files.paths)  # before they are read, so that no change after it is missed
        found._used = files.load(protocol, mode)
        return found

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        """As of the current files."""
        return self._current().wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        """As of the current files."""
        return self._current().wrap_socket(*arguments, **options)

    def _current(self) -> ssl.SSLContext:
        now = signature_of(self._files.paths)
        if now == self._signature:
            return self._used
        self._signature = now  # a wrong or missing file is looked at once, not at every handshake
        try:
            self._used = self._files.load(self.protocol, self._mode)
            log.info("certificate renewed", file=self._files.certificate or self._files.ca)
        except CertificateError as error:
            log.warning("a new certificate can't be used", reason=one_line(str(error)))
        return self._used


def subjects_of(certificate: Any) -> tuple[str, ...]:
    """The names in a verified peer certificate, as `ssl` tells it: alternative names, then common names."""
    if not certificate:
        return ()
    found = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI", "email")]
    found += [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return tuple(dict.fromkeys(found))
