"""`python -m nbmem`: the command line."""

import sys

from nbmem.frontends.cli import main

if __name__ == "__main__":
    sys.exit(main())
