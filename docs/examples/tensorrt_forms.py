"""What TensorRT makes of the norms of a model: each form is built, compared and timed, on one page.

    python docs/examples/tensorrt_forms.py model.onnx "x=1x64,8x64,32x64"

It needs a GPU, TensorRT 10.8 or newer, and ``rmsnorm-export plugin build`` for the last row. The
page is ``tensorrt_forms.md``: please send it with an issue, as TensorRT itself has not run a file
of this project yet.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any, Literal

import rmsnorm_export as rx

FORMS: dict[str, tuple[Any, Literal["never", "require"]]] = {
    "as it is": (None, "never"),
    "RMSNormalization": ("onnx", "never"),
    "function": ("portable", "never"),
    "plugin": ("portable", "require"),
}


def rows(model: str, shapes: str, backend: Any, folder: pathlib.Path) -> Iterator[list[str]]:
    """Yield a form, seconds of its build, layers, norms by layer, difference, milliseconds."""
    for name, (target, plugin) in FORMS.items():
        cells, path = [name], folder / f"{name}.onnx"
        try:
            source = rx.optimize(model, target=target).save(path).path if target else model
            engine = path.with_suffix(".engine")
            record = rx.build_engine(
                source, engine, backend=backend, shapes=shapes, plugin=plugin
            ).record
            how = ", ".join(sorted({norm.how for norm in record.norms}))
            cells += [f"{record.seconds:.1f}", str(len(record.layers)), how]
            verified = rx.verify(model, engine)
            cells.append(f"{max(one.metrics.max_abs for one in verified.outputs):.2e}")
            cells.append(f"{rx.bench(engine).timings[0].median_ms:.3f}")
        except rx.Error as error:
            cells.append(f"{error.what} {error.found}".replace("\n", " "))
        yield cells


def page(model: str, shapes: str, backend: Any = "tensorrt", folder: str = ".") -> str:
    """Return the page, as Markdown."""
    lines = [f"# {model} in {backend}", "", f"rmsnorm-export {rx.__version__}, shapes {shapes}", ""]
    lines += ["| form | built, s | layers | norms | largest difference | ms |", "|" + "---|" * 6]
    lines += [
        "| " + " | ".join(row) + " |" for row in rows(model, shapes, backend, pathlib.Path(folder))
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    pathlib.Path("tensorrt_forms.md").write_text(page(*sys.argv[1:3]))
