"""A PyTorch module from its source: a factory in the user's code, an exported program, or a TorchScript file.

Runs in the torch worker: the user's code is imported here and nowhere else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import json
import random
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deploykit import io
from deploykit.errors import DeploykitError, ModelError, UsageError
from deploykit.exporters.diagnosis import reason, user_line
from deploykit.exporters.torch_mode import switched_to_evaluation
from deploykit.exporters.torch_weights import load_weights
from deploykit.report import Finding, note
from deploykit.unpickling import tensors_only

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from deploykit.exporters.request import TorchRequest

# Of the text of an exported program, which has no weights.
_MAX_PROGRAM_BYTES = 256 << 20
_ENVIRONMENTS = {"site-packages", "dist-packages", ".venv", "venv", "node_modules"}


@dataclasses.dataclass(slots=True)
class Loaded:
    """A module ready for export: in evaluation mode, on the CPU, with its weights.

    program: the exported program it came from. files: the user's Python files that were imported for it.
    """

    module: torch.nn.Module
    findings: list[Finding]
    program: Any = None
    files: list[Path] = dataclasses.field(default_factory=list)

    @property
    def scripted(self) -> bool:
        """Whether it is TorchScript, which only the TorchScript exporter takes."""
        return isinstance(self.module, torch.jit.ScriptModule)


_last: tuple[str, Loaded] | None = None
_local_modules: list[str] = []
_local_paths: list[str] = []


def load(request: TorchRequest) -> Loaded:
    """The module of the request; the last one is kept, so that export and its proof see the same object.

    Raises ModelError (DK610) when the user's code fails, UsageError (DK603) when it has no such factory, and what
    `load_weights` raises.
    """
    global _last
    key = _key(request)
    if _last is not None and _last[0] == key:
        return _last[1]
    _last = None
    _seed(request["seed"])
    loaded = _LOADERS[request["kind"]](request)
    if loaded.program is None:  # an exported program has its mode in its graph
        loaded.findings += switched_to_evaluation(loaded.module)
    _last = (key, loaded)
    return loaded


def _key(request: TorchRequest) -> str:
    parts = {name: request[name] for name in ("kind", "path", "module", "factory", "weights", "args", "seed")}
    files = [Path(name) for name in (request["path"], request["weights"]) if name]
    return json.dumps([parts, [io.file_sha256(file) for file in files if file.is_file()]], sort_keys=True, default=str)


def _seed(seed: int) -> None:
    """Constructors that draw their weights draw the same ones in every run."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the user's constructors may use the global generator
    random.seed(seed)


def _from_python(request: TorchRequest) -> Loaded:
    label = f"{request['path'] or request['module']}:{request['factory']}"
    imported = _import(request)
    made = _call(_factory(imported, str(request["factory"]), label), request["args"], label)
    if not isinstance(made, torch.nn.Module):
        raise UsageError(
            f"{label} made {type(made).__name__}, not a torch.nn.Module",
            code="DK603",
            file=request["path"],
            hint="name the class of the module, or a function that returns one",
        )
    module = made.cpu()
    if request["weights"]:
        findings = load_weights(module, Path(request["weights"]))
    elif any(True for _ in module.parameters()):
        text = "no --weights were given: the values that the constructor set are exported"
        findings = [note("DK614", text, hint="--weights weights.safetensors, unless the factory loads them itself")]
    else:
        findings = []
    return Loaded(module, findings, files=local_files(_root(request, imported)))


def _import(request: TorchRequest) -> ModuleType:
    """The user's module, freshly imported; its folder is on the path as it is for `python file.py`."""
    _forget()
    # A user's folder is not the place for our byte code.
    sys.dont_write_bytecode = True
    before = set(sys.modules)
    folder = Path(request["path"]).resolve().parent if request["path"] else Path.cwd()
    sys.path.insert(0, str(folder))
    _local_paths.append(str(folder))
    try:
        return (
            _import_file(Path(request["path"])) if request["path"] else importlib.import_module(str(request["module"]))
        )
    except (Exception, SystemExit) as problem:
        if isinstance(problem, DeploykitError):
            raise
        raise _user_failure(f"importing {request['path'] or request['module']} failed", problem) from problem
    finally:
        _local_modules.extend(name for name in set(sys.modules) - before if _is_local(sys.modules[name], folder))


def _import_file(path: Path) -> ModuleType:
    # The file's own name, so that class names in the ONNX read as in the source; not over what is already imported.
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"source_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported as Python", code="DK603", file=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _local_modules.append(name)
    spec.loader.exec_module(module)
    return module


def _forget() -> None:
    """Drops the modules of an earlier source: another folder may have files of the same names."""
    while _local_modules:
        sys.modules.pop(_local_modules.pop(), None)
    while _local_paths:
        with contextlib.suppress(ValueError):
            sys.path.remove(_local_paths.pop())
    importlib.invalidate_caches()


def _is_local(module: ModuleType, folder: Path) -> bool:
    file = getattr(module, "__file__", None)
    if not file:
        return False
    path = Path(file).resolve()
    return path.is_relative_to(folder) and not _ENVIRONMENTS & set(path.relative_to(folder).parts)


def _root(request: TorchRequest, imported: ModuleType) -> Path:
    """The folder whose Python files are the user's: the source file's, or the one its package lies in."""
    file = Path(str(imported.__file__)).resolve()
    depth = 0 if request["path"] else str(request["module"]).count(".")
    return file.parents[depth + (1 if file.name == "__init__.py" and not request["path"] else 0)]


def local_files(root: Path) -> list[Path]:
    """Python files below `root` that are imported now, sorted; environments inside the folder are left out."""
    found = {Path(str(module.__file__)).resolve() for module in list(sys.modules.values()) if _is_local(module, root)}
    return sorted(file for file in found if file.suffix == ".py" and file.is_file())


def _factory(imported: ModuleType, name: str, label: str) -> Any:
    found: Any = imported
    for part in name.split("."):
        if not hasattr(found, part):
            names = [other for other in vars(imported) if not other.startswith("_") and callable(vars(imported)[other])]
            near = difflib.get_close_matches(part, names, 1)
            raise UsageError(
                f"{label}: there is no {part!r} in {imported.__name__}",
                code="DK603",
                file=imported.__file__,
                context=[f"it has: {', '.join(names[:12])}"] if names else [],
                hint=f"did you mean {near[0]!r}?" if near else "",
            )
        found = getattr(found, part)
    return found


def _call(factory: Any, args: dict[str, Any], label: str) -> Any:
    if isinstance(factory, torch.nn.Module):
        return factory
    if not callable(factory):
        raise UsageError(f"{label} is {type(factory).__name__}, not a class or function", code="DK603")
    with contextlib.suppress(ValueError):
        _check_signature(factory, args, label)
    try:
        return factory(**args)
    except (Exception, SystemExit) as problem:
        raise _user_failure(f"{label} failed", problem) from problem


def _check_signature(factory: Callable[..., Any], args: dict[str, Any], label: str) -> None:
    signature = inspect.signature(factory)
    try:
        signature.bind(**args)
    except TypeError as problem:
        raise UsageError(
            f"the arguments do not fit {label}: {problem}",
            code="DK604",
            context=[f"it takes {signature}"],
            hint="--arg NAME=VALUE for each parameter without a default",
        ) from problem


def _user_failure(what: str, problem: BaseException) -> ModelError:
    where = user_line(problem)
    hint = "run the file by itself with the same Python: the error is in it or in what it imports"
    if where and "no known parent package" in str(problem):
        package, root = _package(Path(where.file))
        hint = f"a file that is part of a package is named as its module: cd {root} && deploykit export {package}:NAME"
    return ModelError(
        f"{what}: {reason(problem)}",
        code="DK610",
        file=where.file if where else None,
        context=[where.describe()] if where else [],
        hint=hint,
    )


def _package(file: Path) -> tuple[str, Path]:
    """The module that a file of a package is, `package.part`, and the folder that the package lies in."""
    root = file.resolve().parent
    while root.parent != root and (root.parent / "__init__.py").is_file():
        root = root.parent
    return ".".join(file.resolve().with_suffix("").relative_to(root.parent).parts), root.parent


def _from_program(request: TorchRequest) -> Loaded:
    path = Path(str(request["path"]))
    with tensors_only():
        try:
            program = torch.export.load(path)
        except DeploykitError:
            raise
        except Exception as problem:  # the loader raises many kinds for damaged archives
            raise ModelError(
                f"{path} cannot be read as an exported program: {reason(problem)}",
                code="DK611",
                file=path,
                context=_saved_by(path),
                hint=f"save it again with PyTorch {torch.__version__}: torch.export.save(program, {path.name!r})",
            ) from problem
    return Loaded(program.module(), [], program)


def _saved_by(path: Path) -> list[str]:
    """What an exported program says of the PyTorch that saved it; empty where it says nothing."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith(("models/model.json", "program.json")))
            with archive.open(name) as stream:
                facts = json.loads(stream.read(_MAX_PROGRAM_BYTES))
        version, form = facts.get("torch_version", "?"), facts["schema_version"]
        return [f"it was saved by PyTorch {version}, in format {form['major']}.{form['minor']}"]
    except (OSError, ValueError, LookupError, StopIteration, AttributeError, TypeError, zipfile.BadZipFile):
        return []


def _from_torchscript(request: TorchRequest) -> Loaded:
    path = Path(str(request["path"]))
    try:
        module = torch.jit.load(str(path), map_location="cpu")
    except (RuntimeError, ValueError, OSError) as problem:
        raise ModelError(
            f"{path} cannot be read as TorchScript: {reason(problem)}", code="DK611", file=path
        ) from problem
    return Loaded(module, [])


_LOADERS: dict[str, Callable[[TorchRequest], Loaded]] = {
    "python": _from_python,
    "pt2": _from_program,
    "torchscript": _from_torchscript,
}
