"""Measures what each installed engine does with operators, and writes the tables that the package ships.

python benchmarks/operator_sweep.py [ENGINE...] [--cache FILE] [--write]

Points: the onnx package's node tests as they are and with constant operands, and one of each operator's forms in every
type of its schema, in ranks 1 to 6, with open dimensions, and in every opset that revised it. An engine is taken to do
what it did: loaded and the same values as onnx's own evaluator (TensorRT-RTX: an engine came out). The cache is a JSON
file outside the checkout: an interrupted sweep goes on where it stopped.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
import tempfile
import time
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
warnings.simplefilter("ignore")

import compatibility  # noqa: E402
import numpy as np  # noqa: E402
import operator_cases  # noqa: E402
import operator_outcomes  # noqa: E402
import operator_variations  # noqa: E402

from deploykit.lazy import version_of  # noqa: E402
from deploykit.opsupport.facts import facts_of  # noqa: E402
from deploykit.opsupport.limits import load_limits  # noqa: E402
from deploykit.opsupport.measured import ABSENT, WRONG, plain, signature  # noqa: E402
from deploykit.target import get_target  # noqa: E402

FOLDER = HERE.parent / "src" / "deploykit" / "opsupport" / "measurements"
TITLES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "tensorrt-rtx": "TensorRT-RTX",
    "coreml": "deploykit's Core ML front-end, coremltools",
}
FORMAT = 1
_NO_KERNEL = "no kernel for this revision and these types"
# What stands against inputs and outputs of a model says nothing of a node inside one.
_AT_THE_DOOR = re.compile(
    r"interface cannot hold|changed the interface|in the model and \w+ in the engine|no optimization profile|"
    r"Unsupported data type|optimization profile|of which OpenVINO takes and gives no arrays"
)
# What belongs to one model, or to the engine's source, and what it comes to.
_CLEANED = (
    (r"OpenVINO refuses node '[^']*' \(\w+\): |^.*?cannot run a node of [\w.]+: ", ""),
    (r"(TensorRT-RTX|Core ML) refuses (node )?'[^']*' \((\w*)\): ", ""),
    (r"^.*?does not take [\w.]+: |Exception from \S+ |Check '.*?' failed at \S+ ?", ""),
    (
        r"TensorRT-RTX could not build the engine( at '[^']*')?: (IBuilder::buildSerializedNetwork: )?",
        "its builder says: ",
    ),
    (r"^\w+: \[ONNXRuntimeError\] : .*?Status Message: ", ""),
    (
        r"^(Could not find an implementation|Failed to find kernel) for .*",
        "no kernel for this revision and these types",
    ),
    (r"^Exception during initialization: ", ""),
    (r"/\S+?\.(h|cc):\d+ .*?\)( const)?( \[with .*?\])? ", ""),
    (r"^tensor '\w+' is (\w+) in the model and (\w+) in the engine.*", r"\1 becomes \2 in the engine"),
    (r"^RuntimeError: |/\S+/|In \w+ at \S+|0x[0-9a-f]+|\(node_of_\w+\)|node_of_\w+", ""),
)
_NO_KERNEL = "it has no kernel for this revision and these types"


def points(known):
    """{name: [key, since, signature, attributes]} of all valid points; what is in `known` is not made again."""
    for name in operator_variations.names():
        if name in known:
            continue
        case = operator_variations.case(name)
        if case is None:
            known[name] = None
            continue
        node = _facts(case)
        attributes = {key: json.dumps(plain(value)) for key, value in node.attributes.items()}
        known[name] = [node.key, node.since, signature(node), attributes]
    return known


def _missing(known, done):
    """The tests that were not asked about, and one variation for each point that nothing speaks of yet."""
    covered = {tuple(known[name][:3]) for name in done if known.get(name)}
    found = []
    for name, point in known.items():
        if point is None or name in done or (";" in name and tuple(point[:3]) in covered):
            continue
        covered.add(tuple(point[:3]))
        found.append(name)
    return found


def _facts(case):
    import onnx_ir as ir

    return facts_of(ir.serde.deserialize_model(case.model))[0]


def table(engine, known, outcomes, doubtful=frozenset()):
    """The table of an engine, as the package ships it; what the rules of `opsupport.limits` know is left to them.

    doubtful: variations for which onnxruntime and onnx's own evaluator disagree: nobody knows what is right there.
    """
    limits = load_limits(engine)
    evidence = collections.defaultdict(list)
    for name, point in known.items():
        if point is not None and name in outcomes and outcomes[name][0] != "unseen" and name not in doubtful:
            key, since, sign, attributes = point
            if outcomes[name][0] not in operator_outcomes.TAKEN and _says_nothing(name, outcomes[name], limits):
                continue
            evidence[key, str(since), sign].append((attributes, outcomes[name]))
    reasons = {}
    operators = {}
    for (key, since, sign), found in sorted(evidence.items()):
        operators.setdefault(key, {}).setdefault(since, {})[sign] = _point(found, reasons)
    return {
        "format": FORMAT,
        "engine": engine,
        "title": TITLES[engine],
        "version": version_of(get_target(engine).distributions[0]),
        "points": len(evidence),
        "reasons": list(reasons),
        "operators": operators,
    }


def _says_nothing(name, outcome, limits):
    """Whether a failure is not one of the node alone, or is told by a rule already."""
    result, why = outcome
    if _AT_THE_DOOR.search(why) or (result == "wrong" and ";rank=" in name):
        return True  # a test's values need not make sense in another rank
    case = operator_variations.case(name)
    if limits is not None and limits.judge(_facts(case)) is not None:
        return True
    if result == "wrong" and any(map(operator_cases.is_packed, case.expected.values())):
        return True  # two elements in a byte: how they come out at the interface, not what they are
    operator = case.model.graph.node[0].op_type
    if why.endswith("differs by up to 1") and ("Quantize" in operator or operator.startswith("QLinear")):
        return True  # halves rounded to the other side
    if operator == "Sub" and any(value.dtype.kind == "u" for value in case.feeds.values()):
        return True  # a difference below zero has no place in an unsigned type
    # What becomes of infinity as an integer is not defined.
    floats = [value for value in case.feeds.values() if getattr(value, "dtype", None) in (np.float16, np.float32)]
    return result == "wrong" and ";" in name and not all(np.isfinite(value).all() for value in floats)


def _point(found, reasons):
    refused = [
        (attributes, _reason(outcome)) for attributes, outcome in found if outcome[0] not in operator_outcomes.TAKEN
    ]
    taken = [attributes for attributes, outcome in found if outcome[0] in operator_outcomes.TAKEN]
    if not refused:
        return 1
    numbers = [(attributes, reasons.setdefault(reason, len(reasons))) for attributes, reason in refused]
    if not taken:
        return [numbers[0][1]]
    names = sorted({name for attributes, _ in numbers for name in attributes} | {n for a in taken for n in a})
    for name in names:
        absent = json.dumps(ABSENT)
        good = {attributes.get(name, absent) for attributes in taken}
        bad = {attributes.get(name, absent): number for attributes, number in numbers}
        if not good & bad.keys() and json.dumps("(other)") not in good | bad.keys():
            return {"attribute": name, "taken": sorted(good), "refused": bad}
    return {"attribute": None, "refused": [numbers[0][1]]}


def _reason(outcome):
    """A message without what belongs to this one model: names, files, lines of source."""
    result, why = outcome
    if result == "wrong":
        kind = "another shape" if "shape" in why else "another type" if " is " in why else "other values"
        return f"{WRONG} {kind} than onnx's own evaluator"
    if result == "crashed":
        return "the engine's process crashed at it"
    text = " ".join(why.split())
    for pattern, instead in _CLEANED:
        text = re.sub(pattern, instead, text)
    return "; ".join(dict.fromkeys(text.split("; ")))[:160].strip() or "it was refused without a reason"


def _doubtful(compared):
    """Variations that are perhaps no valid models, or whose values are not known, by what onnxruntime makes of them."""
    found = set()
    for name, (result, why) in compared.items():
        reshaped = re.search(";(opset|rank)=", name) and result not in operator_outcomes.TAKEN
        if ";" in name and (result == "wrong" or (reshaped and not _without_kernel(why))):
            found.add(name)
    return found


def _without_kernel(why):
    return "Could not find an implementation" in why or "Failed to find kernel" in why


def main():
    """Sweeps, and writes the tables where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "deploykit-sweep.json")
    parser.add_argument("--write", action="store_true", help="write the tables into the package")
    chosen = parser.parse_args()
    cache = compatibility.Cache(chosen.cache)
    known = points(cache.of("points", "all"))
    cache.save(now=True)
    print(f"{sum(point is not None for point in known.values())} points of {len(known)} variations", flush=True)
    for engine in chosen.engines or compatibility.ENGINES:
        done = cache.of(engine, "outcomes")
        started = time.perf_counter()
        missing = _missing(known, done)
        for name, outcome in compatibility.outcomes(engine, missing, function="operator_outcomes:varied"):
            done[name] = outcome
            cache.save()
        cache.save(now=True)
        counts = dict(collections.Counter(outcome[0] for outcome in done.values()))
        print(engine, counts, f"{time.perf_counter() - started:.0f} s", flush=True)
        if chosen.write:
            FOLDER.mkdir(exist_ok=True)
            compared = cache.of("onnxruntime", "outcomes")
            made = table(engine, known, done, _doubtful(compared))
            text = json.dumps(made, separators=(",", ":"), sort_keys=True)
            file = FOLDER / f"{engine}-{made['version']}.json"
            file.write_text(text.replace('},"ai.onnx:', '},\n"ai.onnx:') + "\n", encoding="utf-8")
            print(file.name, made["points"], "points", f"{file.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
