"""Property tests of this folder: no time limit an example, the machine may be busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("stream", deadline=None)
settings.load_profile("stream")
