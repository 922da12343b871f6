"""Compare what ``optimize`` writes and reports with the frozen state; exit code 1 on a difference.

python -m tests.tools.golden             # all but the exported models
python -m tests.tools.golden --corpus    # the exported models (minutes when not in the cache)
python -m tests.tools.golden -k rstd     # the models with that in their name
python -m tests.tools.golden --freeze    # after a decided difference; --corpus for the others
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from tests.tools.golden import models
from tests.tools.golden.frozen import CORPUS, FROZEN, Frozen, freeze, public_names


def main() -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.golden", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--corpus", action="store_true", help="the exported models instead")
    parser.add_argument("--freeze", action="store_true", help="write the frozen file anew")
    parser.add_argument("-k", default="", metavar="NAME", help="only models with this in the name")
    options = parser.parse_args()
    path = CORPUS if options.corpus else FROZEN
    everything = models.exports() if options.corpus else models.models()
    chosen = (model for model in everything if options.k in model.name)
    if options.freeze:
        if options.k:
            parser.error("--freeze writes all models: omit -k")
        print(freeze(chosen, path, exported=options.corpus).summary())
        return 0
    frozen = Frozen.read(path)
    if frozen.other_versions():
        print(f"frozen with other versions, bytes may differ: {frozen.other_versions()}")
    count = 0
    for difference in _differences(frozen, chosen, whole=not options.k):
        print(difference, flush=True)
        count += 1
    print(f"{count} differences; {frozen.summary()}")
    return int(count > 0)


def _differences(frozen: Frozen, chosen: Iterator[models.Model], *, whole: bool) -> Iterator[str]:
    now = public_names()
    for name in sorted({*frozen.public} ^ {*now}):
        yield f"public name {name}: {'new' if name in now else 'gone'}"
    met = set()
    for model in chosen:
        met.add(model.name)
        yield from frozen.differences(model)
    for name in frozen.models:
        if whole and name not in met:
            yield f"{name}: no such model any more"


if __name__ == "__main__":
    sys.exit(main())
