"""``python -m rmsnorm_export``: the command line without its script on the PATH."""

import sys

from rmsnorm_export.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
