"""What each error code means, in TOML files by range: `dk3.toml` has DK300 to DK399."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import tomllib


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """One code, explained: what it says, why it happens, what to do."""

    code: str
    title: str
    why: str
    fix: str


@functools.cache
def load() -> dict[str, Explanation]:
    """Every explanation by code, in ascending order."""
    found = {}
    for file in importlib.resources.files(__name__).iterdir():
        if file.name.startswith("dk") and file.name.endswith(".toml"):
            table = tomllib.loads(file.read_text(encoding="utf-8"))
            for code, entry in table.items():
                found[code] = Explanation(code, entry["title"], entry["why"].strip(), entry["fix"].strip())
    return dict(sorted(found.items()))
