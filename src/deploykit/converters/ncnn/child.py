"""What loads a network in a process of its own, because a damaged file ends that process.

Started as `python -m deploykit.converters.ncnn.child REQUEST.json`; the answer is written to the file that it names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def load(param: str, weights: str) -> dict[str, Any]:
    """Names of inputs and outputs, or the problem. A damaged file may end this process."""
    import ncnn

    network = ncnn.Net()
    network.opt.lightmode = False
    if network.load_param(param) != 0:
        return {"problem": "ncnn does not read its layers"}
    if network.load_model(weights) != 0:
        return {"problem": f"its weights, {Path(weights).name}, are not those of its layers"}
    return {"inputs": list(network.input_names()), "outputs": list(network.output_names())}


def main(request: Path) -> None:
    """Answers one request: {"param", "weights", "answer": where the answer goes}."""
    wanted = json.loads(request.read_text(encoding="utf-8"))
    found = load(wanted["param"], wanted["weights"])
    Path(wanted["answer"]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
