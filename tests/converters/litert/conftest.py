from __future__ import annotations

import sys
from pathlib import Path

# Beside the tests, which are no packages.
sys.path.insert(0, str(Path(__file__).parent))
