"""How long a test waits for what must come."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 120.0
"""Only a failure takes so long: an idle machine needs seconds, a busy one may need twenty times as many."""
