"""A name that is no keyspace: say so, and which there are, instead of what it leads to further on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from freshet.settings import Settings
from freshet.settings_errors import unknown_keyspace
from tokens.errors import FreshetError

MISSING = frozenset({"topic_missing", "owner_unknown"})
"""What a misspelt name looks like from Kafka. A keyspace that is known by its topic only is as good as any."""


@contextlib.contextmanager
def naming_known(settings: Settings, keyspace: str) -> Iterator[None]:
    """Turns an error that a wrong name may be the cause of into `SettingsError` ``unknown_keyspace``.

    Only where the settings name keyspaces, and not this one; what was missing stays in the message.
    """
    try:
        yield
    except FreshetError as error:
        if error.code not in MISSING or keyspace in settings.keyspaces or not settings.keyspaces:
            raise
        raise unknown_keyspace(keyspace, settings.keyspaces, also=str(error), hint=error.hint) from error
