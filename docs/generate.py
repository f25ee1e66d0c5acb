"""Writes what is generated in docs/: error codes, tolerances, the schema of deploykit.yaml, the Core ML operator table.

python docs/generate.py          # write
python docs/generate.py --check  # fail when a file is out of date
"""

import argparse
import json
import sys
from pathlib import Path

from deploykit.explanations import load
from deploykit.parity import TOLERANCES
from deploykit.pipeline.config import json_schema

DOCS = Path(__file__).parent


def errors() -> str:
    lines = ["# Error codes", "", "`deploykit explain CODE` prints one of these at the shell.", ""]
    for code, entry in load().items():
        lines += [f"## {code}: {entry.title}", "", entry.why, "", f"**What to do:** {entry.fix}", ""]
    return "\n".join(lines)


def tolerances() -> str:
    lines = [
        "# Tolerances",
        "",
        "An output passes when every element satisfies `|candidate - reference| <= rtol * |reference| + atol`, with",
        "`atol` a factor of the largest `|reference|`, or, where a signal-to-noise limit stands, when SQNR reaches it.",
        "NaN and infinities never pass. A tolerance is never raised to what was observed.",
        "",
        "| precision | rtol | atol, x max abs ref | min SQNR, dB | note |",
        "|---|---|---|---|---|",
    ]
    for precision, row in TOLERANCES.items():
        sqnr = "" if row.min_sqnr_db is None else f"{row.min_sqnr_db:g}"
        rtol = "" if row.rtol is None else f"{row.rtol:g}"
        atol = "" if row.atol_factor is None else f"{row.atol_factor:g}"
        lines.append(f"| {precision} | {rtol} | {atol} | {sqnr} | {row.note} |")
    return "\n".join(lines) + "\n"


def schema() -> str:
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


FILES = {"errors.md": errors, "tolerances.md": tolerances, "deploykit.schema.json": schema}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for name, make in FILES.items():
        path, text = DOCS / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{'out of date' if check else 'written'}: {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
