"""What runs MNN's own code in a process of its own, because a hostile file or a bad node ends that process.

Started as `python -m deploykit.converters.mnn.child REQUEST.json`; the answer is written to the file that it names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def _convert(arguments: list[str]) -> None:
    # Not the script `mnnconvert`, which installs packages and posts what was converted.
    import _tools

    _tools.mnnconvert(["mnnconvert", *arguments])


def look(path: str, *, inside: bool = True) -> dict[str, Any]:
    """Interface and, where asked for, the operators of a file; nothing of it is computed.

    A damaged file raises SystemError, or ends this process.
    """
    from MNN import nn

    facts = nn.load_module_from_file(path, [], []).get_info()
    inputs = [
        {
            "name": name,
            "dtype": str(value.dtype).rpartition(".")[2],
            "layout": str(value.data_format).rpartition(".")[2],
            "shape": list(value.shape),
        }
        for name, value in zip(facts["inputNames"], facts["inputs"], strict=True)
    ]
    return {
        "version": str(facts["version"]),
        "tag": str(facts["bizCode"]),
        "inputs": inputs,
        "outputs": list(facts["outputNames"]),
        **(_inside(path) if inside else {}),
    }


def _inside(path: str) -> dict[str, Any]:
    import MNN
    from MNN import expr

    operators: dict[str, int] = {}
    names = []
    for value in expr.load_as_list(path):
        operators[str(value.op_type)] = operators.get(str(value.op_type), 0) + 1
        names.append(str(value.name))
    return {"operators": operators, "tensors": names, "uuid": str(MNN.get_model_uuid(path))}


def main(request: Path) -> None:
    """Answers one request: {"convert": arguments}, or {"look": file, "answer": where the answer goes}."""
    wanted = json.loads(request.read_text(encoding="utf-8"))
    if "convert" in wanted:
        _convert(wanted["convert"])
        return
    Path(wanted["answer"]).write_text(json.dumps(look(wanted["look"])), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
