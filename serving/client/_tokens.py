"""The client's only import from outside its folder: `tokens`, with the base class of all errors.

In the wheel of ``freshet-client`` the package `tokens` itself takes this module's place, so that installing the client
adds no top-level package ``tokens``.
"""

from tokens import FreshetError, Position, TokenError, ValidWriteIdList, Vector

__all__ = ["FreshetError", "Position", "TokenError", "ValidWriteIdList", "Vector"]
