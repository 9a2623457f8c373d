"""`python -m unembed` and the `unembed` script."""

from __future__ import annotations

import sys

from unembed.cli import main

if __name__ == "__main__":
    sys.exit(main())
