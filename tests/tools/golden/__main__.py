"""Compare what ``optimize`` writes and reports with the frozen state; exit code 1 on a difference.

python -m tests.tools.golden             # all but the exported models
python -m tests.tools.golden --corpus    # the exported models (minutes when not in the cache)
python -m tests.tools.golden -k rstd     # the models with that in their name
python -m tests.tools.golden --freeze    # after a decided difference; --corpus for the others
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.tools.golden import models
from tests.tools.golden.frozen import CORPUS, FROZEN, Frozen, freeze, public_names
from tests.tools.lib.command import parser


def main() -> int:
    """Run the command and return its exit code."""
    options = parser("tests.tools.golden", __doc__)
    options.add_argument("--corpus", action="store_true", help="the exported models instead")
    options.add_argument("--freeze", action="store_true", help="write the frozen file anew")
    options.add_argument("-k", default="", metavar="NAME", help="only models with this in the name")
    chosen = options.parse_args()
    path = CORPUS if chosen.corpus else FROZEN
    everything = models.exports() if chosen.corpus else models.models()
    if chosen.freeze:
        if chosen.k:
            options.error("--freeze writes all models: omit -k")
        print(freeze(everything, path, exported=chosen.corpus).summary())
        return 0
    frozen = Frozen.read(path)
    if frozen.other_versions():
        print(f"frozen with other versions, bytes may differ: {frozen.other_versions()}")
    count = 0
    for difference in _differences(frozen, everything, chosen.k):
        print(difference, flush=True)
        count += 1
    print(f"{count} differences; {frozen.summary()}")
    return int(count > 0)


def _differences(frozen: Frozen, everything: Iterator[models.Model], part: str) -> Iterator[str]:
    """Yield those of the public names, and of the models with ``part`` in their name."""
    now = public_names()
    for name in sorted({*frozen.public} ^ {*now}):
        yield f"public name {name}: {'new' if name in now else 'gone'}"
    gone = {name for name in frozen.models if part in name}
    for model in everything:
        if part in model.name:
            gone.discard(model.name)
            yield from frozen.differences(model)
    yield from (f"{name}: no such model any more" for name in sorted(gone))


if __name__ == "__main__":
    sys.exit(main())
