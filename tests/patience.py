"""How long a test waits for what must come."""

from __future__ import annotations

from typing import Final

PATIENCE_S: Final = 240.0
"""Only a failure takes so long: where an idle machine needs seconds, a busy one may need twenty times as many."""
