"""``rmsnorm_export.verify`` reads models, and refuses them, as ``optimize`` does."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from hostile_models import GAIN, HOSTILE, external_model, norm_model, write

from rmsnorm_export.compare.verify import verify
from rmsnorm_export.errors import Error, InputError, UsageError
from rmsnorm_export.graph.load import load_model

BAD = [name for name, case in HOSTILE.items() if case.error is not None]


@pytest.mark.parametrize("name", BAD)
def test_the_error_is_that_of_optimize(name: str, tmp_path: Path) -> None:
    path = HOSTILE[name].make(tmp_path)
    with pytest.raises(Error) as expected:
        load_model(path)
    for pair in ((path, norm_model()), (norm_model(), path)):
        with pytest.raises(Error) as caught:
            verify(*pair)
        assert (type(caught.value), str(caught.value)) == (
            type(expected.value),
            str(expected.value),
        )


def test_every_kind_of_source_is_taken(tmp_path: Path) -> None:
    path = write(tmp_path, norm_model())
    data = path.read_bytes()
    for source in (path, str(path), data, onnx.load(path), ir.load(path)):
        assert verify(path, source).passed
        assert verify(source, data).passed


def test_external_data_needs_a_folder(tmp_path: Path) -> None:
    path = external_model(tmp_path, data=GAIN)
    assert verify(path, ir.load(path)).passed
    for source in (path.read_bytes(), onnx.load(path, load_external_data=False)):
        with pytest.raises(InputError, match="does not know its folder"):
            verify(path, source)


def test_what_is_no_model_at_all() -> None:
    with pytest.raises(UsageError, match="of a type"):
        verify(7, norm_model())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="0 bytes"):
        verify(norm_model(), b"")


def test_the_model_is_handed_over_as_it_was_given(tmp_path: Path) -> None:
    path = write(tmp_path, norm_model())
    data = path.read_bytes()
    proto = onnx.load(path)
    for source in (path, data, memoryview(data), proto):
        loaded = load_model(source)  # type: ignore[arg-type]
        assert loaded.to_bytes() == data
        with loaded.file() as file:
            assert file.read_bytes() == data
        assert file.exists() == (source is path)
    again = onnx.ModelProto.FromString(load_model(ir.load(path)).to_bytes())
    assert again.graph.node == proto.graph.node
    for bad in (b"", data[:-9], b"\xff" * 99):
        with pytest.raises(InputError):
            load_model(bad)


def test_a_file_that_goes_away(tmp_path: Path) -> None:
    path = write(tmp_path, norm_model())
    loaded = load_model(path)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read again"):
        loaded.to_bytes()
