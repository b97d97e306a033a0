"""How long tests wait for an expected event."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 240.0
"""Only a failure takes this long. A busy machine may need twenty times the seconds of an idle one."""
