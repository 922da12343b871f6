"""What attributes of the operator and classes of numerics mean, for the reader of a report."""

from importlib import resources

import msgspec

WORDS: dict[str, str] = msgspec.json.decode(
    resources.files(__package__).joinpath("words.json").read_bytes()
)
"""Of an attribute what it says, of a class what it promises."""
