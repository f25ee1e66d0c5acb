"""Start-up: `deploykit --help` against `python -c pass` and bare typer+rich, and a cached run of the digits example.

Use: python benchmarks/start_up.py [--rounds N]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from timing import interleaved, print_ratio, wall

ROOT = Path(__file__).parents[1]
BARE = "import typer, rich.console; a = typer.Typer(); a.command()(lambda: None); a(['--help'], standalone_mode=False)"


def main() -> None:
    """Runs and prints both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    rounds = parser.parse_args().rounds
    deploykit = str(Path(sys.executable).with_name("deploykit"))
    sides = {
        "deploykit --help": lambda: wall([deploykit, "--help"]),
        "python -c pass": lambda: wall([sys.executable, "-c", "pass"]),
        "bare typer+rich --help": lambda: wall([sys.executable, "-c", BARE]),
    }
    times = interleaved(sides, rounds)
    print_ratio("Help", times, "deploykit --help", "python -c pass")
    configuration = str(ROOT / "examples" / "digits" / "deploykit.yaml")
    wall([deploykit, "run", configuration])
    sides = {
        "cached deploykit run": lambda: wall([deploykit, "run", configuration]),
        "python -c pass": lambda: wall([sys.executable, "-c", "pass"]),
    }
    print_ratio("Cached re-run", interleaved(sides, 5), "cached deploykit run", "python -c pass")


if __name__ == "__main__":
    main()
