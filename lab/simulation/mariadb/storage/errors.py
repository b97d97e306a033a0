"""Errors that the simulated server sends. The driver makes its own exceptions of them."""

from __future__ import annotations


class ServerError(Exception):
    """An error packet: number, SQL state and text."""

    def __init__(self, code: int, text: str, state: str = "HY000") -> None:
        super().__init__(code, text)
        self.code, self.text, self.state = code, text, state
