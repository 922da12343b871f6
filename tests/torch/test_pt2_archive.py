"""A ``.pt2`` file: whatever could run code is refused, what torch.export.save writes is read."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import random
import time
import zipfile

import pytest

pytest.importorskip("torch", reason="pip install 'rmsnorm-export[torch]'")

import torch

import rmsnorm_export as rx
import rmsnorm_export.torch as rt
from rmsnorm_export.errors import Error, InputError
from rmsnorm_export.torch.source.load import load
from rmsnorm_export.torch.source.program_text import is_arithmetic, is_known_operator
from tests.cli.conftest import run  # noqa: F401 (a fixture)

# ruff: noqa: F811 (fixtures as arguments)

MODEL = "models/model.json"
SAMPLES = "data/sample_inputs/model.pt"
WEIGHTS = "data/weights/model_weights_config.json"
CONSTANTS = "data/constants/model_constants_config.json"


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(8))
        self.table = torch.arange(8.0)

    def forward(self, x, unused):
        del unused
        rms = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * x * rms + self.table


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """An honest archive: name without the root folder -> bytes."""
    path = tmp_path_factory.mktemp("honest") / "m.pt2"
    x = torch.randn(3, 8)
    dynamic = {"x": {0: torch.export.Dim("batch")}, "unused": None}
    torch.export.save(torch.export.export(Norm(), (x, x), dynamic_shapes=dynamic), path)
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def write(path, records, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in records.items():
            archive.writestr(f"m/{name}", data)
    return path


def edited(records, name, *changes):
    """The archive with values of one JSON record replaced: path of keys -> value."""
    document = json.loads(records[name])
    for keys, value in changes:
        *path, last = keys
        place = document
        for key in path:
            place = place[key]
        place[last] = value
    return records | {name: json.dumps(document).encode()}


class Call:
    """Unpickled, it makes a file."""

    def __init__(self, marker) -> None:
        self.marker = marker

    def __reduce__(self):
        return exec, (f"open({str(self.marker)!r}, 'w')",)


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def in_sample_inputs(records, marker):
    return records | {SAMPLES: saved(Call(marker))}


def in_sample_inputs_of_another_case(records, marker):
    others = {name: data for name, data in records.items() if name != SAMPLES}
    return others | {SAMPLES.replace(".pt", ".PT"): saved(Call(marker))}


def in_sample_inputs_without_archive(records, marker):
    return records | {SAMPLES: b"cos\nsystem\n(S'touch %s'\ntR." % str(marker).encode()}


def in_a_weight(records, marker):
    changed = edited(records, WEIGHTS, (("config", "weight", "use_pickle"), True))
    return changed | {"data/weights/weight_0": saved(Call(marker))}


def in_a_constant(records, marker):
    changed = edited(records, CONSTANTS, (("config", "table", "use_pickle"), True))
    return changed | {"data/constants/tensor_0": saved(Call(marker))}


def in_an_opaque_constant(records, marker):
    import pickle

    entry = (("config", "table", "path_name"), "opaque_obj_0")
    changed = edited(records, CONSTANTS, entry, (("config", "table", "use_pickle"), True))
    return changed | {"data/constants/opaque_obj_0": pickle.dumps(Call(marker))}


def in_weights_of_an_old_name(records, marker):
    return records | {"data/weights/model.pt": saved({"weight": Call(marker)})}


GRAPH = ("graph_module", "graph")


def in_a_size(records, marker):
    text = f"__import__('pathlib').Path({str(marker)!r}).touch() or Integer(3)"
    size = {"as_expr": {"expr_str": text, "hint": {"as_int": 3}}}
    return edited(records, MODEL, ((*GRAPH, "tensor_values", "x", "sizes", 0), size))


def in_the_names_of_arguments(records, marker):
    # The name stands twice in the generated source: what is between is a string then.
    name = f"unused='''):\n    open({str(marker)!r}, 'w')\n    return x #"
    keys = ("graph_module", "module_call_graph", 0, "signature", "forward_arg_names")
    return edited(records, MODEL, (keys, ["x", name]))


def in_a_container(records, marker):
    (marker.parent / "imported_by_a_container.py").write_text(f"open({str(marker)!r}, 'w')")
    context = {
        "default_factory_module": "imported_by_a_container",
        "default_factory_name": "list",
        "dict_context": [],
    }
    spec = {"type": "collections.defaultdict", "context": context, "children_spec": []}
    return _with_out_spec(records, spec)


def in_an_enumeration(records, marker):
    (marker.parent / "imported_by_an_enumeration.py").write_text(f"open({str(marker)!r}, 'w')")
    key = {"__enum__": True, "fqn": "imported_by_an_enumeration:X", "name": "Y"}
    return _with_out_spec(
        records, {"type": "builtins.dict", "context": json.dumps([key]), "children_spec": []}
    )


def _with_out_spec(records, spec):
    keys = ("graph_module", "module_call_graph", 0, "signature", "out_spec")
    return edited(records, MODEL, (keys, json.dumps([1, spec])))


LIVE = [value for name, value in list(globals().items()) if name.startswith("in_")]


@pytest.mark.parametrize("change", LIVE, ids=lambda change: change.__name__)
def test_what_runs_code_is_refused(change, records, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    marker = tmp_path / "code-ran"
    path = write(tmp_path / "m.pt2", change(records, marker))
    with pytest.raises(InputError) as caught:
        _use(load(str(path), arguments={}, dtype=None))
    assert not marker.exists()
    assert "could run code" in caught.value.what
    assert "--trust-source" in caught.value.fix
    # It would run: the check is of something that matters.
    with contextlib.suppress(Exception):
        loaded = load(str(path), arguments={}, dtype=None, trust_source=True)
        _use(loaded)
        assert "m.pt2" in loaded.notes[0]
    assert marker.exists()


def _use(loaded):
    x = torch.randn(3, 8)
    loaded.module.module()(x, x)


def test_guards_of_a_file_are_not_run(records, tmp_path):
    marker = tmp_path / "code-ran"
    changed = edited(records, MODEL, (("guards_code",), [f"open({str(marker)!r}, 'w')"]))
    path = write(tmp_path / "m.pt2", changed)
    _use(load(str(path), arguments={}, dtype=None))
    assert not marker.exists()
    _use(type("Read", (), {"module": torch.export.load(path)}))
    assert marker.exists()


def _target(records, name):
    return edited(records, MODEL, ((*GRAPH, "nodes", 0, "target"), name))


def _constraint(records, name):
    constraints = json.loads(records[MODEL])["range_constraints"]
    constraints[name] = {"min_val": 0, "max_val": 8}
    return edited(records, MODEL, (("range_constraints",), constraints))


def _empty(records):
    return edited(
        records, WEIGHTS, (("config", "weight", "tensor_meta", "sizes"), [{"as_int": 2**40}])
    ) | {"data/weights/weight_0": b""}


REFUSED = {
    "library": lambda r: r | {"data/aotinductor/model/m.wrapper.so": b"\x7fELF"},
    "library elsewhere": lambda r: r | {"extra/m.so": b"\x7fELF"},
    "script object": lambda r: edited(
        r, CONSTANTS, (("config", "table", "path_name"), "custom_obj_0")
    ),
    "parent folder": lambda r: edited(r, WEIGHTS, (("config", "weight", "path_name"), "../a")),
    "operator that loads": lambda r: _target(r, "torch.ops.load_library"),
    "operator that reads files": lambda r: _target(r, "torch.ops.aten.from_file.default"),
    "operator of nobody": lambda r: _target(r, "torch.ops.strange.operator.default"),
    "attribute of an operator": lambda r: _target(r, "torch.ops.aten.add.__class__"),
    "function of another module": lambda r: _target(r, "torch.os.system"),
    "function as an operand": lambda r: edited(
        r,
        MODEL,
        ((*GRAPH, "nodes", 0, "target"), "torch.ops.higher_order.wrap"),
        ((*GRAPH, "nodes", 0, "inputs", 0, "arg"), {"as_operator": "torch.os.system"}),
    ),
    "source in the name of an input": lambda r: (
        r | {MODEL: r[MODEL].replace(b'"name": "unused"', b'"name": "open(0)"')}
    ),
    "function of torch": lambda r: _target(r, "torch.hub.load"),
    "name of a parameter": lambda r: edited(
        r, WEIGHTS, (("config",), {'a", open("b"))': json.loads(r[WEIGHTS])["config"]["weight"]})
    ),
    "counting": lambda r: _constraint(r, "u999999999999"),
    "no numbers": _empty,
    "script archive": lambda r: r | {SAMPLES: _scripted()},
}


def _scripted():
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_is_not_known_to_be_harmless_is_refused(case, records, tmp_path):
    path = write(tmp_path / "m.pt2", REFUSED[case](records))
    with pytest.raises(InputError, match="could run code"):
        load(str(path), arguments={}, dtype=None)


def test_an_archive_that_unpacks_to_more_is_refused(records, tmp_path):
    bomb = records | {"extra/bomb.txt": b"0" * 2**22}
    path = write(tmp_path / "m.pt2", bomb, zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match=r"unpack to .*bomb"):
        load(str(path), arguments={}, dtype=None)


@pytest.mark.parametrize("evil", [False, True])
def test_archives_of_an_old_pytorch(evil, tmp_path):
    from torch._export.serde.serialize import serialize

    x = torch.randn(3, 8)
    marker = tmp_path / "code-ran"
    artifact = serialize(torch.export.export(Norm(), (x, x)))
    inputs = saved(Call(marker)) if evil else artifact.example_inputs
    path = tmp_path / "old.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("version", "8.8")
        archive.writestr("serialized_exported_program.json", artifact.exported_program)
        archive.writestr("serialized_state_dict.pt", artifact.state_dict)
        archive.writestr("serialized_constants.pt", artifact.constants)
        archive.writestr("serialized_example_inputs.pt", inputs)
    if evil:
        with pytest.raises(InputError, match=r"serialized_example_inputs\.pt: a pickle that calls"):
            load(str(path), arguments={}, dtype=None)
        assert not marker.exists()
    else:
        _use(load(str(path), arguments={}, dtype=None))


def test_commands_refuse_and_say_what_they_trusted(records, tmp_path, run):
    path = write(tmp_path / "m.pt2", records | {SAMPLES: saved(pathlib.PurePosixPath("x"))})
    out = tmp_path / "m.onnx"
    done = run("export", path, "-o", out)
    assert done.code == 3
    assert "PurePosixPath" in done.stderr
    assert not out.exists()
    assert run("verify", path, path).code == 3
    with pytest.raises(InputError, match="could run code"):
        rx.verify(path, path)
    for command in ("export", "verify"):
        assert "--trust-source" in run(command, "--help").text
    x = torch.ones(3, 8)
    inputs = ((x, x), {"p": pathlib.PurePosixPath("x")})
    write(path, records | {SAMPLES: saved(inputs)})
    assert run("export", path, "-o", out).code == 3


def test_what_was_trusted_stands_in_the_report(records, tmp_path, run):
    class_of_its_own = saved(((torch.ones(3, 8), torch.ones(3, 8)), {}))
    honest = records | {SAMPLES: class_of_its_own}
    trusted = honest | {"extra/m.so": b"a library that nobody opens"}
    path, out = write(tmp_path / "m.pt2", trusted), tmp_path / "m.onnx"
    done = run("export", path, "-o", out, "--trust-source", "--format", "json")
    assert done.code == 0, done.stderr
    assert any("m.so: compiled code" in note for note in done.json["notes"])
    found = rx.verify(path, out, trust_source=True)
    assert found.passed
    assert any("m.so: compiled code" in note for note in found.notes)
    assert "m.so: compiled code" in run("verify", path, out, "--trust-source").text
    write(path, honest)
    done = run("export", path, "-o", out, "--force", "--trust-source", "--format", "json")
    assert not any("trust" in note for note in done.json["notes"])


class Sizes(torch.nn.Module):
    def __init__(self, dtype=torch.float32) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(8, dtype=dtype)
        self.tied = self.norm.weight
        self.register_buffer("scale", torch.ones((), dtype=dtype))
        self.register_buffer("none", torch.ones(0, dtype=dtype))

    def forward(self, x):
        y = self.norm(x) * self.scale
        half = torch.arange(x.shape[0] // 2)
        flat = y.reshape(-1)[: 2 * x.shape[0] + 1]
        chosen = torch.cond(x.shape[0] > 3, lambda a: a.sin(), lambda a: a.cos(), (y,))
        return {"half": half, "flat": flat, "chosen": (chosen, [self.tied])}


class Values(torch.nn.Module):
    def forward(self, x, *, others):
        count = (x > 0).sum().item()
        torch._check(count >= 0)
        made = torch.nn.functional.pad(others["a b"].new_zeros(count + 1), (1, 1), mode="constant")
        return (
            torch.einsum("ij,kj->ik", x, x),
            made,
            torch.nn.functional.gelu(x, approximate="tanh"),
        )


class Operators(torch.nn.Module):
    def forward(self, x):
        return rt.skip_rms_norm(x, x, epsilon=1e-6)


class Loop(torch.nn.Module):
    def forward(self, x):
        def step(i, a):
            return i + 1, a * 2

        return torch.while_loop(lambda i, _: i < 3, step, (torch.tensor(0), x))


ROWS = {0: torch.export.Dim("rows", min=4, max=4096)}
HONEST = {
    "fixed": (Norm(), (torch.randn(3, 8), torch.randn(3, 8)), None, None),
    "operators": (Operators(), (torch.randn(3, 8),), None, ({0: torch.export.Dim.AUTO},)),
    "values": (
        Values(),
        (torch.randn(3, 8),),
        {"others": {"a b": torch.ones(2), "c/d": torch.ones(1)}},
        None,
    ),
    "loop": (Loop(), (torch.randn(3),), None, None),
    **{
        str(dtype): (Sizes(dtype), (torch.ones(4, 8, dtype=dtype),), None, (ROWS,))
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    },
}


def _same(a, b):
    ours, theirs = torch.utils._pytree.tree_leaves(a), torch.utils._pytree.tree_leaves(b)
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("case", HONEST)
def test_what_pytorch_saves_is_read(case, tmp_path):
    module, args, kwargs, dynamic = HONEST[case]
    program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic)
    path = tmp_path / "m.pt2"
    torch.export.save(program, path, extra_files={"notes.txt": 'it\'s "quoted"'})
    loaded = load(str(path), arguments={}, dtype=None)
    assert loaded.notes == ()
    want = module(*args, **(kwargs or {}))
    assert _same(loaded.module.module()(*loaded.args, **loaded.kwargs), want)
    torch.export.save(program.run_decompositions(), path)
    loaded = load(str(path), arguments={}, dtype=None)
    assert _same(loaded.module.module()(*args, **(kwargs or {})), want)


@pytest.mark.parametrize(
    ("text", "harmless"),
    [
        ("Symbol('s77', positive=True, integer=True)", True),
        ("Add(Integer(1), Mul(Integer(2), Symbol('s0', integer=True)))", True),
        ("2*s0 + 1", True),
        ("Pow(Symbol('s0'), Integer(2))", True),
        ("FloorDiv(Symbol('s0'), Integer(2)) >= 3", True),
        ("Max(1, u0)", True),
        ("-int_oo", True),
        ("Float('0.5', precision=53)", True),
        ("9**9**9", False),
        ("(9**64)**64", False),
        ("Pow(Pow(Integer(9), Integer(64)), Integer(64))", False),
        ("9**(64*64*64)", False),
        ("Pow(Integer(9), Integer(1000000000))", False),
        ("LShift(Integer(1), LShift(Integer(9), Integer(60)))", False),
        ("__import__('os').system('x')", False),
        ("Symbol('s0').__class__", False),
        ("(lambda: 0)()", False),
        ("[x for x in s0]", False),
        ("S('1')", False),
        ("exec('1')", False),
        ("Symbol(exec)", False),
        ("Max(**s0)", False),
        ("s0 # \n", False),
        ("f'{s0}'", False),
        ("(" * 400 + ")" * 400, False),
        ("-" * 4000 + "1", False),
        ("1" * 7000, False),
        ("", False),
    ],
)
def test_expressions(text, harmless):
    assert is_arithmetic(text) is harmless


def test_operators():
    for name in ("torch.ops.aten.add.Tensor", "_operator.mul", "torch.sym_max", "math.trunc"):
        assert is_known_operator(name)
    assert is_known_operator("torch.ops.rmsnorm_export.rms_norm.default")
    for name in ("torch.ops.import_module", "torch.sym_max.__globals__", "_operator.call", "os"):
        assert not is_known_operator(name)


def test_changed_archives_give_errors(records, tmp_path):
    """Bytes that were changed, cut or swapped: read as they are, or an error; never a hang."""
    generator = random.Random(5)
    names = [MODEL, SAMPLES, WEIGHTS, CONSTANTS]
    for number in range(120):
        name = generator.choice(names)
        data = bytearray(records[name])
        for _ in range(generator.choice((1, 1, 3))):
            kind = generator.randrange(4)
            place = generator.randrange(len(data))
            if kind == 0:
                data[place] = generator.randrange(256)
            elif kind == 1:
                data[place] = ord(generator.choice('0123456789"[]{},:-'))
            elif kind == 2:
                del data[place : place + generator.randrange(1, 40)]
            else:
                data[place:place] = data[place : place + generator.randrange(1, 40)]
        path = write(tmp_path / f"{number}.pt2", records | {name: bytes(data)})
        if number % 4 == 0:
            whole = bytearray(path.read_bytes())
            whole[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
            path.write_bytes(whole[: generator.randrange(1, 2 * len(whole))])
        begin = time.perf_counter()
        with contextlib.suppress(Error):
            load(str(path), arguments={}, dtype=None)
        assert time.perf_counter() - begin < 20
