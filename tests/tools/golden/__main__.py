"""Compare what ``optimize`` writes and reports with the frozen state; exit code 1 on a difference.

python -m tests.tools.golden               # all but the exported models
python -m tests.tools.golden --corpus      # the exported models (minutes when not in the cache)
python -m tests.tools.golden -k rstd       # the models with that in their name
python -m tests.tools.golden --freeze 'spelling/square=mul*' drawn/7   # decided differences

A difference is frozen where its model is named, or begins with a name that ends with ``*``; the
others are printed as they are without ``--freeze``, and stay.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.tools.golden import models
from tests.tools.golden.frozen import CORPUS, FROZEN, RUNS, Frozen, entry
from toolbox.command import parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parser("tests.tools.golden", __doc__)
    options.add_argument("--corpus", action="store_true", help="the exported models instead")
    options.add_argument("--freeze", nargs="+", default=[], metavar="NAME", help="models to freeze")
    options.add_argument("-k", default="", metavar="NAME", help="only models with this in the name")
    chosen = options.parse_args(arguments)
    folder = CORPUS if chosen.corpus else FROZEN
    frozen = Frozen.read(folder)
    if other := frozen.other_versions():
        print(f"frozen with other versions, bytes may differ: {other}")
        if chosen.freeze not in ([], ["*"]):
            options.error("with other versions all models are frozen at once: --freeze '*'")
    if chosen.freeze == ["*"]:
        frozen.versions.update(frozen.versions_here())
    unused, left = {*chosen.freeze}, 0
    for name, now in _outcomes(frozen, chosen.k, exported=chosen.corpus):
        if not (difference := frozen.difference(name, now)):
            continue
        names = {part for part in chosen.freeze if _covers(part, name)}
        print(f"{'frozen: ' if names else ''}{difference}", flush=True)
        if names:
            frozen.change(name, now)
        unused, left = unused - names, left + (not names)
    if chosen.freeze:
        frozen.write(folder)
    for name in sorted(unused):
        print(f"nothing was frozen for {name}: no difference has this name")
    print(f"{left} differences; {len(frozen.entries)} models x {len(RUNS)} runs")
    return int(left > 0 or bool(unused))


def _covers(part: str, name: str) -> bool:
    return name.startswith(part[:-1]) if part.endswith("*") else name == part


def _outcomes(frozen: Frozen, part: str, *, exported: bool) -> Iterator[tuple[str, str]]:
    """Yield what the models with ``part`` in their name give; "" of those that are gone."""
    gone = {name for name in frozen.entries if part in name}
    make = models.exports if exported else models.models
    for model in make(lambda name: part in name):
        gone.discard(model.name)
        yield model.name, entry(model)
    yield from ((name, "") for name in sorted(gone))


if __name__ == "__main__":
    sys.exit(main())
