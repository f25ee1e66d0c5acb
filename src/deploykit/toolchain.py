"""A toolchain that no package index has, described: what it takes, its command lines, and where both are documented.

One TOML file each. `load` reads one with the standard library only and refuses what it does not understand: a word
that is misspelt in a description would otherwise be a rule that is not kept.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from deploykit.errors import ConfigError

_HOME = Path(__file__).parent / "converters" / "bundles"
DATA = _HOME / "data"
SCRIPTS = _HOME / "scripts"
OWN = "DEPLOYKIT_BUNDLES"  # a folder with a user's own descriptions
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
# What a command may name besides the target's options and the description's own joins.
KNOWN = ("model", "stem", "calibration", "samples")


@dataclasses.dataclass(frozen=True, slots=True)
class Needs:
    """What the toolchain takes.

    opset: lowest and highest of the standard domain. static: every dimension has one size. inputs: the most. dtypes of
    inputs, rank: the highest of an input. batch: the size that the first dimension has to have.
    """

    opset: tuple[int, int] | None = None
    static: bool = False
    inputs: int | None = None
    dtypes: tuple[str, ...] = ()
    rank: int | None = None
    batch: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Calibration:
    """Samples that the toolchain quantizes by.

    form: how they are written: `raw` (one float32 file an input and sample, and a list of them), `npy` (the same as
    NumPy files), `stack` (one NumPy file with all samples of the only input). layout: nhwc moves channels last.
    list: a line of the list; {path} of each input, joined by `joined`. needed: whether nothing is made without.
    """

    form: Literal["raw", "npy", "stack"]
    needed: bool = False
    layout: Literal["", "nhwc"] = ""
    line: str = "{path}"
    joined: str = " "
    samples: int = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One `--option`: help, the value without it, whether there has to be one, and the values that it takes."""

    help: str
    default: str | None = None
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One command: arguments as they are, `{each = [...]}` for every input, `{when = NAME, args = [...]}`.

    when: `calibration`, or an option that has a value; the step is left out otherwise.
    """

    run: tuple[Any, ...]
    about: str = ""
    when: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Description:
    """One toolchain.

    makes: what comes out. tool: what has to be installed, in words. sources: where command and rules are documented.
    joins: texts over all inputs by name: `each` with {name} and {dims}, `with` between them, `dims_with` in shapes.
    script: a Python file that goes along as `build.py`. table: an operator table that speaks for it.
    model: what the toolchain reads: an ONNX file, or the source itself ("savedmodel"). instead: a way that replaces it.
    """

    name: str
    title: str
    makes: str
    tool: str
    sources: tuple[str, ...]
    precisions: tuple[str, ...] = ("fp32",)
    needs: Needs = Needs()
    calibration: Calibration | None = None
    options: dict[str, Option] = dataclasses.field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    joins: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    script: str = ""
    table: str = ""
    model: Literal["onnx", "savedmodel"] = "onnx"
    instead: str = ""
    notes: tuple[str, ...] = ()


def own_folder() -> Path:
    """Where a user's own descriptions lie: $DEPLOYKIT_BUNDLES, or deploykit/bundles in the configuration folder."""
    given = os.environ.get(OWN)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(given) if given else Path(home) / "deploykit" / "bundles"


def own_names() -> list[str]:
    """Names of a user's own descriptions: the stems of their files."""
    folder = own_folder()
    return sorted(file.stem for file in folder.glob("*.toml")) if folder.is_dir() else []


def is_described(name: str) -> bool:
    """Whether there is a description of that name, ours or a user's."""
    return (DATA / f"{name}.toml").is_file() or name in own_names()


@functools.cache
def load(name: str) -> Description:
    """The description of that name, ours or a user's. Raises ConfigError (DK594) for one that is wrong."""
    ours = DATA / f"{name}.toml"
    return read(ours if ours.is_file() else own_folder() / f"{name}.toml")


def read(file: Path) -> Description:
    """A description file. Raises ConfigError (DK594) with the key that is wrong."""
    try:
        facts = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise _wrong(file, str(problem)) from problem
    try:
        found = _description(file.stem, facts)
    except (TypeError, ValueError, KeyError, AttributeError) as problem:
        raise _wrong(
            file, str(problem).replace("__init__() got an unexpected keyword argument", "no such key")
        ) from problem
    _check(found, file)
    return found


def _description(name: str, facts: dict[str, Any]) -> Description:
    given = dict(facts)
    needs = dict(given.pop("needs", {}))
    if "opset" in needs:
        low, high = needs["opset"]
        needs["opset"] = (int(low), int(high))
    calibration = given.pop("calibration", None)
    options = {key: _frozen(Option, value) for key, value in given.pop("options", {}).items()}
    steps = tuple(Step(tuple(each.pop("run")), **each) for each in map(dict, given.pop("step", ())))
    rest: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    made = None if calibration is None else Calibration(**calibration)
    return Description(name=name, needs=_frozen(Needs, needs), calibration=made, options=options, steps=steps, **rest)


def _frozen(kind: Any, facts: dict[str, Any]) -> Any:
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()})


def _check(found: Description, file: Path) -> None:
    if not found.sources:
        raise _wrong(file, "sources is empty: a command without a source cannot be checked")
    if not found.steps and not found.script:
        raise _wrong(file, "there is no [[step]] and no script, so nothing would be built")
    if found.script and not (SCRIPTS / found.script).is_file() and not (file.parent / found.script).is_file():
        raise _wrong(file, f"script {found.script!r} lies neither beside it nor among ours")
    known = {*KNOWN, *found.options, *found.joins}
    for text in _texts([step.run for step in found.steps]):
        for name in _PLACEHOLDER.findall(text):
            if name not in known | {"name", "dims"}:
                raise _wrong(file, f"{{{name}}} in a command is no option, no join and none of {', '.join(KNOWN)}")


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value
    return [text for each in inner for text in _texts(each)]


def _wrong(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{file.name} is no description of a toolchain: {why}",
        code="DK594",
        file=file,
        hint="the files in deploykit/converters/bundles/data show the form",
    )
