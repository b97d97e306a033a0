"""The only import of the client from outside its folder: tokens and the root of all errors.

A wheel of ``freshet-client`` has the package `tokens` itself here, so that no application gets a top-level package of
that name.
"""

from tokens import FreshetError, Position, TokenError, Vector

__all__ = ["FreshetError", "Position", "TokenError", "Vector"]
