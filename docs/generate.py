"""Writes what is generated in docs/: error codes, tolerances, the schema of deploykit.yaml, operators, rewrites.

python docs/generate.py          # write
python docs/generate.py --check  # fail when a file is out of date
"""

import argparse
import importlib.util
import json
import logging
import sys
from pathlib import Path

from deploykit.explanations import load
from deploykit.optimizers.rewrites import all_rewrites
from deploykit.pipeline.config import json_schema

sys.path.insert(0, str(Path(__file__).parent))
import coreml_ops_page
import coreml_page
import locating_page
import quantization_page
import serving_page
import targets_page
import tolerances_page
from sources_page import page

DOCS = Path(__file__).parent


def errors() -> str:
    lines = ["# Error codes", "", "`deploykit explain CODE` prints one of these at the shell.", ""]
    for code, entry in load().items():
        lines += [f"## {code}: {entry.title}", "", entry.why, "", f"**What to do:** {entry.fix}", ""]
    return "\n".join(lines)


def tolerances() -> str:
    measured = DOCS.parent / "benchmarks"
    return tolerances_page.page(measured / "rounding_faults.json", measured / "movement_faults.json")


def schema() -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def coreml_ops() -> str | None:
    if importlib.util.find_spec("coremltools") is None:  # Windows: it cannot be checked there
        return None
    logging.getLogger("coremltools").setLevel(logging.CRITICAL)  # it misses its Apple parts aloud
    # It would load them where it finds them, for front-ends that are not used.
    sys.modules.update(dict.fromkeys(("torch", "transformers", "tensorflow", "sklearn", "xgboost")))
    from deploykit.converters.coreml.lowering import REGISTRY

    return coreml_ops_page.page(REGISTRY)


def coreml() -> str:
    return coreml_page.page(DOCS / "parts" / "coreml.md", DOCS.parent / "benchmarks" / "coreml_models.json")


def rewrites() -> str:
    lines = [
        "# Rewrites of `check --fix`",
        "",
        "In the order in which they are tried; [how they are chosen and proven](fixing.md).",
        "",
        "| rewrite | what it does |",
        "|---|---|",
    ]
    lines += [f"| `{rewrite.name}` | {rewrite.title} |" for rewrite in all_rewrites()]
    return "\n".join(lines) + "\n"


def sources() -> str:
    return page(DOCS.parent / "benchmarks" / "sources.json")


def serving() -> str:
    return serving_page.page(DOCS / "parts" / "serving.md", DOCS.parent / "benchmarks" / "serving.json")


def quantization() -> str:
    return quantization_page.page(DOCS / "parts" / "quantization.md", DOCS.parent / "benchmarks" / "quantization.json")


def targets() -> str:
    return targets_page.page(DOCS / "parts" / "targets.md", DOCS.parent / "benchmarks" / "targets.json")


FILES = {
    "coreml.md": coreml,
    "errors.md": errors,
    "tolerances.md": tolerances,
    "deploykit.schema.json": schema,
    "coreml-ops.md": coreml_ops,
    "locating.md": locating_page.page,
    "rewrites.md": rewrites,
    "sources.md": sources,
    "quantization.md": quantization,
    "serving.md": serving,
    "targets.md": targets,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for name, make in FILES.items():
        path, text = DOCS / name, make()
        if text is not None and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{'out of date' if check else 'written'}: {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
