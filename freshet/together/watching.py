"""Says when the front of ``freshet up`` answers, and when each keyspace is ready."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request

from stream.access.direct import direct
from tokens.errors import one_line

POLL_S: Final = 0.5
ANSWER_TIMEOUT_S: Final = 5.0
STILL_AFTER: Final = 20
"""Looks after which it says what the keyspaces that are not ready lack, or why the front does not answer."""


class Watch:
    """Looks at ``/v1/status`` until all keyspaces were ready once; a thread of its own. ``say`` gets lines."""

    def __init__(
        self,
        url: str,
        token: str,
        say: Callable[[str], None],
        keyspaces: list[str],
        secured: ssl.SSLContext | None = None,
    ) -> None:
        """``keyspaces``: those to wait for, of all that the front has."""
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._say = say
        self._secured = secured
        self._waiting = set(keyspaces)
        self._has_answered = False
        self._problem = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def end(self) -> None:
        """Looks no more. A look that is under way ends by itself and says nothing."""
        self._ended.set()

    def _look(self) -> None:
        looks = unanswered = 0
        while self._waiting and not self._ended.wait(POLL_S):
            found = self._ask()
            if self._ended.is_set():
                continue
            if found is None:
                unanswered += 1
                if unanswered == STILL_AFTER and not self._has_answered:
                    self._say(f"no answer at {self._url} yet: {self._problem}")
                continue
            self._tell(found)
            looks += 1
            if looks == STILL_AFTER:
                for each in found:
                    if each["name"] in self._waiting:
                        self._say(f"{each['name']} is not ready yet: {each['missing'][0]}")

    def _tell(self, found: list[dict[str, Any]]) -> None:
        if not self._has_answered:
            self._has_answered = True
            self._say(f"answers at {self._url} (Ctrl-C ends everything)")
        for each in found:
            if each["ready"] and each["name"] in self._waiting:
                self._waiting.discard(each["name"])
                self._say(f"{each['name']} is ready")
        if not self._waiting:
            self._say("everything is ready")

    def _ask(self) -> list[dict[str, Any]] | None:
        """The front's keyspaces; None if it does not answer."""
        request = Request(f"{self._url}/v1/status", headers=self._headers)
        try:
            with direct(self._secured).open(request, timeout=ANSWER_TIMEOUT_S) as answer:
                found: list[dict[str, Any]] = json.load(answer)["keyspaces"]
                return found
        except (OSError, HTTPException, ValueError, KeyError) as error:  # it may be ended amid an answer
            self._problem = _problem_of(error)
            return None


def _problem_of(error: Exception) -> str:
    """Why there was no answer, with the setting that may be wrong."""
    if isinstance(error, HTTPError):
        error.close()
        denied = error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        return f"it answers {error.code}{'; set client.token to a secret that it accepts' * denied}"
    cause = getattr(error, "reason", error)
    unknown = isinstance(cause, ssl.SSLError)
    return one_line(f"{str(cause) or type(cause).__name__}{'; check client.tls' * unknown}")
