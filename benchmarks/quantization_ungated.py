"""`deploykit quantize` without its gates: the benchmark scores what the command refuses to hand out, and says so.

python benchmarks/quantization_ungated.py MODEL -o OUT --precision P ...   (the options of the command)
"""

import sys
from typing import Any

import deploykit.api.quantize as command
from deploykit.cli.app import main
from deploykit.quantize.stage import QuantizeStage
from deploykit.stage import Verification


class Ungated(QuantizeStage):
    """The stage without what comes after."""

    def ensures(self, *_: Any) -> Verification:  # noqa: D102
        return Verification(metrics={"size_ratio": None, "accuracy": None})


if __name__ == "__main__":
    command.QuantizeStage = Ungated  # type: ignore[misc]
    sys.argv[0] = "deploykit"
    sys.exit(main())
