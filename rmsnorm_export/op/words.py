"""The meaning of the operator's attributes and of the classes of numerics, for reports."""

from importlib import resources

import msgspec

WORDS: dict[str, str] = msgspec.json.decode(
    resources.files(__package__).joinpath("words.json").read_bytes()
)
"""Attribute or class -> its meaning."""
