"""What pip is told: commands that work wherever this package was installed from."""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path

import pytest

from rmsnorm_export.deploy.tables import TABLES
from rmsnorm_export.errors import BackendMissingError
from rmsnorm_export.system import packages
from rmsnorm_export.system.packages import pip_install, require_package

REQUIRES = """
Requires-Dist: onnx>=1.18
Requires-Dist: tomli>=2; python_version < "3.11"
Requires-Dist: onnxruntime>=1.22; extra == 'ort'
Requires-Dist: torch>=2.9; extra == "torch"
Requires-Dist: onnxscript>=0.5; extra == "torch"
Requires-Dist: tensorrt_rtx>=1.7; extra == "tensorrt-rtx"
Requires-Dist: onnxscript>=0.7; extra == "bench"
"""


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, origin: object = None) -> None:
    """This package as pip leaves it, from ``origin`` (see ``direct_url.json``)."""
    info = folder / "rmsnorm_export-0.1.0.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: rmsnorm-export\nVersion: 0.1.0\n{REQUIRES.lstrip()}"
    (info / "METADATA").write_text(text)
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(folder)


def test_packages_are_named_with_the_versions_that_are_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch)
    assert pip_install("[torch]") == "pip install 'torch>=2.9' 'onnxscript>=0.5'"
    assert pip_install("[ort]") == "pip install 'onnxruntime>=1.22'"
    assert pip_install("tensorrt-rtx", "onnx") == "pip install 'tensorrt_rtx>=1.7' 'onnx>=1.18'"
    assert pip_install("onnxscript", "transformers") == "pip install 'onnxscript>=0.5' transformers"


@pytest.mark.parametrize(
    ("origin", "arguments"),
    [
        (None, ["rmsnorm-export"]),
        (
            {"url": "file:///home/me/a%20folder", "dir_info": {"editable": True}},
            ["-e", "/home/me/a folder"],
        ),
        ({"url": "file:///home/me/folder", "dir_info": {}}, ["/home/me/folder"]),
        (
            {"url": "https://example.org/x.whl", "archive_info": {}},
            ["rmsnorm-export @ https://example.org/x.whl"],
        ),
        (
            {
                "url": "https://example.org/x.git",
                "vcs_info": {"vcs": "git", "commit_id": "abc"},
            },
            ["rmsnorm-export @ git+https://example.org/x.git@abc"],
        ),
    ],
)
def test_the_package_itself_comes_from_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: object, arguments: list[str]
) -> None:
    installed(tmp_path, monkeypatch, origin)
    command = ["pip", "install", "--force-reinstall", *arguments]
    assert shlex.split(pip_install("rmsnorm-export")) == command


def test_a_checkout_that_was_never_installed_is_installed_from_its_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_found(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packages.metadata, "requires", not_found)
    monkeypatch.setattr(packages.metadata, "distribution", not_found)
    root = Path(__file__).parents[2]
    assert pip_install("[torch]") == shlex.join(["pip", "install", "-e", f"{root}[torch]"])
    assert pip_install("torch") == "pip install torch"


def test_a_missing_package_is_an_error_with_the_command_that_brings_it() -> None:
    require_package("json", "This", "json")
    with pytest.raises(BackendMissingError) as caught:
        require_package("no_such_module", "This", "no-such-package")
    assert caught.value.what == "This needs a package that is not installed."
    assert caught.value.found == "no package no_such_module"
    assert caught.value.fix == "pip install no-such-package"


def test_every_extra_that_is_named_in_the_sources_exists() -> None:
    package, tables = Path(packages.__file__).parents[1], {f"[{name}]" for name in TABLES}
    found = set()
    for path in package.rglob("*.py"):
        text = path.read_text("utf-8")
        assert not re.search(r"pip install .*rmsnorm-export", text), path
        found |= set(re.findall(r"\"(\[[a-z][a-z-]*\])\"", text)) - tables
    declared = metadata.metadata("rmsnorm-export").get_all("Provides-Extra") or []
    assert found
    assert found <= {f"[{extra}]" for extra in declared}
