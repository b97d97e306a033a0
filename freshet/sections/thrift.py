"""Settings of the Thrift front, by which engines ask for a catalog as they ask its metastore."""

from __future__ import annotations

from pydantic import Field

from freshet.sections.access import TlsSettings
from freshet.sections.values import Host, Port, Section


class ThriftSettings(Section):
    """A listener for engines, of the catalog that it is named after. It is no login: a metastore's is passed on.

    ``max_wait_ms``: how long the cache may take to fold up to the end of the metastore's log. ``max_staleness_ms``: how
    old an answer to a call without a list of write ids may be; 0: as new as the metastore's own.
    ``shown_bytes`` bounds what is kept of answers. ``plain``: it may listen beyond loopback without TLS.
    """

    host: Host = "127.0.0.1"
    port: Port = 9083
    tls: TlsSettings = TlsSettings()
    plain: bool = False
    max_wait_ms: int = Field(default=200, ge=0, le=20_000)
    max_staleness_ms: int = Field(default=0, ge=0, le=86_400_000)
    shown_bytes: int = Field(default=64 * 1024 * 1024, ge=0, le=64 * 1024**3)
    connections: int = Field(default=2_000, ge=1, le=100_000)
