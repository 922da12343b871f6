"""Base of the results of public functions: a line, a text or a page of each.

How each kind of result reads is decided in ``show``, the uppermost layer. It is looked up by its
name when somebody asks, so that the layers below neither import nor load it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from rmsnorm_export.records import to_json


class Shown:
    """A result that shows itself.

    ``repr`` is one line. A notebook shows text and tables, never a whole graph.
    """

    __slots__ = ()

    def _shown(self) -> Any:
        """Return what is shown: of a result that holds a model beside its report, the report."""
        return self

    def parts(self) -> Mapping[str, Any]:
        """Return the results of the parts by name; of what has none this alone, by ""."""
        return {"": self}

    def _show(self, how: str, **options: Any) -> Any:
        show = importlib.import_module("rmsnorm_export.show")
        return getattr(show, how)(self._shown(), **options)

    def to_text(self, *, verbose: int = 0) -> str:
        """Return what the command of the same name prints.

        Args:
            verbose: below 0 the verdict alone, above 0 with all details.
        """
        return str(self._show("to_text", verbose=verbose))

    def headline(self) -> str:
        """Return the verdict as one line."""
        return str(self._show("headline_of"))

    def to_json(self) -> str:
        """Return every field as one JSON document; see docs/reference/cli.md."""
        return to_json(self._shown())

    def to_html(self) -> str:
        """Return a page for a browser, which needs no other file and no network."""
        return str(self._show("to_html"))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def _repr_html_(self) -> str:
        return str(self._show("to_fragment"))
