"""A sample of keys: always the same ones, whatever their pattern."""

from __future__ import annotations

from typing import Final

_MIX: Final = 0x9E3779B97F4A7C15


def sampled(key: int, share: float) -> bool:
    """Whether ``key`` is in a sample of ``share`` of all keys."""
    mixed = (key + 1 ^ (key >> 31)) * _MIX % 2**64
    mixed = (mixed ^ (mixed >> 29)) * _MIX % 2**64
    return (mixed ^ (mixed >> 32)) % 2**64 < share * 2**64
