"""Entry point of ``python -m qkv``, which equals the command ``qkv``."""

import sys

from qkv.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
