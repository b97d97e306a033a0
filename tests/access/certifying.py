"""Certificates of authorities that the tests make, as files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme

from stream.access.certificates import Certificates


def write(authority: trustme.CA, place: Path, name: str, *identities: str, expired: bool = False) -> Certificates:
    """A certificate for the identities, signed by the authority, and the authority's own: files in ``place``."""
    until = datetime.now(UTC) - timedelta(days=1) if expired else None
    made = authority.issue_cert(*identities, not_after=until)
    made.private_key_and_cert_chain_pem.write_to_path(place / f"{name}.pem")
    authority.cert_pem.write_to_path(place / f"{name}-ca.pem")
    return Certificates(str(place / f"{name}.pem"), "", str(place / f"{name}-ca.pem"))
