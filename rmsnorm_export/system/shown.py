"""What the result of every public function can do: say what it is, as a line, a text or a page.

How each kind of result reads stands on the highest floor of the house, in ``show``. It is looked
up by its name when somebody asks, so that the floors below it neither import nor load it.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from rmsnorm_export.errors import InputError, UsageError
from rmsnorm_export.records import to_json
from rmsnorm_export.system.files import write_whole

_MODELS = (".onnx", ".engine", ".plan")


class Shown:
    """A result that shows itself.

    ``repr`` is one line. A notebook shows text and tables, never a whole graph.
    """

    __slots__ = ()

    def _shown(self) -> Any:
        """What is shown: a result that holds a model beside its report shows the report."""
        return self

    def _show(self, how: str, **options: Any) -> Any:
        show = importlib.import_module("rmsnorm_export.show")
        return getattr(show, how)(self._shown(), **options)

    def to_text(self, *, verbose: int = 0) -> str:
        """What the command of the same name prints.

        Args:
            verbose: below 0 the verdict alone, above 0 with all details.
        """
        return str(self._show("to_text", verbose=verbose))

    def to_json(self) -> str:
        """Every field, as one JSON document; see docs/reference/cli.md."""
        return to_json(self._shown())

    def to_html(self) -> str:
        """A page for a browser, which needs no other file and no network."""
        return str(self._show("to_html"))

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write this to a file, whole or not at all.

        Args:
            path: of the file: JSON where it ends in ``.json``, a page in ``.html``, else text.
            force: replace an existing file.

        Returns:
            Its path.

        Raises:
            UsageError: the file exists, or its name is that of a model.
            InputError: the place cannot be written.
        """
        place = Path(path)
        suffix = place.suffix.lower()
        if suffix in _MODELS:
            raise UsageError(
                "This is a report, not a model.",
                found=str(place),
                fix="give a name that ends in .json, .html or .txt; the model was written already,"
                " or the result that holds it writes it",
            )
        if not place.parent.is_dir():
            raise InputError(
                "The report cannot be written.",
                found=f"no folder {place.parent}",
                fix=f"create it: mkdir -p {place.parent}",
            )
        made = {".json": self.to_json, ".html": self.to_html}.get(suffix, self.to_text)
        try:
            write_whole(place, made(), replace=force)
        except FileExistsError as error:
            raise UsageError(
                "The report would overwrite a file.",
                found=f"{place} exists",
                fix="give another name, or force=True to replace it",
            ) from error
        except OSError as error:
            raise InputError(
                "The report cannot be written.",
                found=f"{place}: {error.strerror or error}",
                fix="check the folder and its permissions",
            ) from error
        return place

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._show('headline_of')}>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        return str(self._show("to_fragment"))
