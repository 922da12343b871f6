"""The documentation: pip install '.[docs,decoder]' && python -m sphinx -W docs build/docs

reference/options.md is written at each build, from the records of the options.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from rmsnorm_export.cli.main import cli
from rmsnorm_export.deploy.settings import TABLES
from rmsnorm_export.options import REQUIRED, entries, expected

project = "rmsnorm_export"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_theme_options = {"top_of_page_buttons": []}
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]
exclude_patterns = ["_build"]
# Run where the site is built: no output is kept in a notebook, so that none is older than the code.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # seconds of one cell
nb_output_stderr = "remove"
# The signatures are those of the commands' records, which say what an absent option comes to.
smartquotes = False  # "--flag" and "text" are code wherever they stand
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_ivar = True


def _commands(group: click.Group, context: click.Context) -> Iterator[click.Context]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        own = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, own)
        else:
            yield own


def _entry(name: str, text: str) -> str:
    escaped = re.sub(r"([*_<>`$])", r"\\\1", text)
    return f"`{name}`\n: {escaped}\n"


def options_page() -> str:
    """Return every option of every command, and every key of a pipeline file."""
    parts = ["# Options", "Every option, by command; `--help` lists those that are used most."]
    for context in _commands(cli, click.Context(cli, info_name="rmsnorm-export")):
        parts.append(f"## {context.command_path.partition(' ')[2]}")
        flags = [one for one in context.command.params if isinstance(one, click.Option)]
        parts += [_entry(*(one.get_help_record(context) or ("", ""))) for one in flags]
    parts += ["# Pipeline files", "The tables and keys of a file for `deploy`."]
    for name, table in TABLES.items():
        parts.append(f"## \\[{name}\\]")
        parts += [
            _entry(entry.key, _key_text(entry)) for entry in entries(table) if entry.facts.toml
        ]
    return "\n\n".join(parts)


def _key_text(entry: Any) -> str:
    kind, default = expected(entry.hint), entry.facts.shown
    if not default and entry.default not in (None, ()):
        default = "" if entry.default is REQUIRED else json.dumps(entry.default)
    end = f"  [default: {default}]" if default else ""
    end = "  [required]" if entry.default is REQUIRED else end
    return f"{entry.facts.help} {kind[:1].upper()}{kind[1:]}.{end}"


def setup(app: Any) -> None:
    page = Path(__file__).with_name("reference") / "options.md"
    app.connect("builder-inited", lambda _: page.write_text(options_page(), encoding="utf-8"))
