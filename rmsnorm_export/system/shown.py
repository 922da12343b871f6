"""Base of the results of public functions: a line, a text or a page of each.

How each kind of result reads is decided in ``show``, the uppermost layer. It is looked up by its
name when somebody asks, so that the layers below neither import nor load it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import UsageError
from rmsnorm_export.records import to_json
from rmsnorm_export.system.files import output_path, refusals_as, write_whole


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

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write this to a file, whole or not at all.

        Args:
            path: of the file: JSON where it ends in ``.json``, a page in ``.html``, else text.
            force: replace an existing file.

        Returns:
            Its path.

        Raises:
            UsageError: the file exists, its name is that of a model, or it is no path.
            InputError: the place cannot be written.
        """
        place = output_path(path)
        suffix = place.suffix.lower()
        if suffix in (".onnx", ".engine", ".plan"):
            fix = "give a name that ends in .json, .html or .txt"
            raise UsageError("This is a report, not a model.", found=str(place), fix=fix)
        content = {".json": self.to_json, ".html": self.to_html}.get(suffix, self.to_text)()
        if os.path.lexists(place) and not force:
            what, fix = "The report would overwrite a file.", "give another name, or force=True"
            raise UsageError(what, found=f"{place} exists", fix=fix)
        fix = "check the folder and its permissions"
        with refusals_as("The report cannot be written.", place, fix=fix):
            os.stat(place.parent)
            write_whole(place, content, replace=force)
        return place

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def _repr_html_(self) -> str:
        return str(self._show("to_fragment"))
