"""An export that makes the exporter's tables the short way writes the same graph."""

from __future__ import annotations

import contextlib
import threading

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")
pytest.importorskip("onnxscript", reason="pip install 'rmsnorm-export[torch]'")

import torch
from onnxscript._internal import ast_utils

from rmsnorm_export.torch.export import tables
from tests.torch.export_modules import Model, ids, make

pytestmark = pytest.mark.export


def _in_place():
    return [vars(owner)[name] for owner, name, _ in tables._SHORTCUTS]


def test_the_graph_is_the_same_and_no_translation_is_parsed(monkeypatch):
    parsed = []
    parse = ast_utils.get_src_and_ast
    monkeypatch.setattr(ast_utils, "get_src_and_ast", lambda f: (parsed.append(f), parse(f))[1])
    texts = []
    module = make(Model, torch.float16).eval()
    for tables_made in (contextlib.nullcontext, tables.quick_tables):
        parsed.clear()
        with tables_made():
            program = torch.onnx.export(module, (ids(),), optimize=False)
        assert bool(parsed) == (tables_made is contextlib.nullcontext)
        texts.append(program.model_proto.SerializeToString(deterministic=True))
    assert texts[0] == texts[1]


def test_an_operator_that_is_registered_between_two_exports_is_seen():
    def preserved():
        return {op.name() for op in torch._export.utils._collect_all_valid_cia_ops()}

    with tables.quick_tables():
        assert "rmsnorm_export_tables::late" not in preserved()
        library = torch.library.Library("rmsnorm_export_tables", "DEF")
        library.define("late(Tensor x) -> Tensor")
        library.impl("late", lambda x: x + 1, "CompositeImplicitAutograd")
        assert "rmsnorm_export_tables::late" in preserved()
        library._destroy()


def test_the_last_of_several_threads_puts_everything_back():
    before = _in_place()
    entered, leave = threading.Event(), threading.Event()

    def other():
        with tables.quick_tables():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with tables.quick_tables():
        thread.start()
        assert entered.wait(60)
        inside = _in_place()
        assert all(a is not b for a, b in zip(before, inside, strict=True))
    assert _in_place() == inside
    leave.set()
    thread.join()
    assert _in_place() == before
