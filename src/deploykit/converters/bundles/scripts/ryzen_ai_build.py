"""Compiles this bundle for the NPU: python3 build.py, where the Ryzen AI software is installed."""

import json
import os
import pathlib
import sys

import numpy
import onnxruntime

HERE = pathlib.Path(__file__).resolve().parent
os.chdir(HERE)  # paths in lists count from here
BUNDLE = json.loads((HERE / "bundle.json").read_text(encoding="utf-8"))


def main() -> None:
    """Opens a session, which compiles into the cache, and compares its outputs with the expected ones."""
    if "VitisAIExecutionProvider" not in onnxruntime.get_available_providers():
        sys.exit("this onnxruntime has no VitisAIExecutionProvider: it is the one of the Ryzen AI software")
    options = {"cache_dir": str(HERE / "compiled"), "cache_key": BUNDLE["stem"]}
    options.update({name: BUNDLE["options"][name] for name in ("config_file", "xclbin") if BUNDLE["options"].get(name)})
    model = str(HERE / BUNDLE["model"])
    session = onnxruntime.InferenceSession(model, providers=["VitisAIExecutionProvider"], provider_options=[options])
    for sample in BUNDLE["samples"]:
        given = dict(numpy.load(HERE / sample["inputs"], allow_pickle=False))
        wanted = dict(numpy.load(HERE / sample["outputs"], allow_pickle=False))
        found = dict(zip((each.name for each in session.get_outputs()), session.run(None, given), strict=True))
        for name, value in wanted.items():
            off = numpy.max(numpy.abs(found[name].astype("float64") - value.astype("float64")), initial=0.0)
            print(
                f"{sample['name']}: output {name!r}: largest difference {off:.3g} of {numpy.max(numpy.abs(value)):.3g}"
            )


if __name__ == "__main__":
    main()
