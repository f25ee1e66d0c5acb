"""`python -m deploykit`."""

import sys

from deploykit.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
