"""Hostile and odd model files, made by functions; none is stored.

``registry.HOSTILE`` maps a name to a ``Case``: a function that writes the files into an empty
folder and returns the path to open, the error class that must come of it (None: the model is merely
odd and must be read), and words that the message or the notes must contain.
"""

from __future__ import annotations

from hostile import odd, unsound  # noqa: F401  (they fill the registry)
