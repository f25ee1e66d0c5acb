"""Pages of ONNX Runtime Web: in Node, or in a browser where one is asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

from deploykit import graph
from deploykit.converters.onnxruntime_web.folder import SCRIPTS, read_facts
from deploykit.converters.onnxruntime_web.frames import outputs_of, request
from deploykit.converters.onnxruntime_web.node import NodeProcess
from deploykit.converters.onnxruntime_web.package import (
    BROWSER,
    find_browser,
    find_node,
    find_package,
    why_no_browser,
    why_not,
)
from deploykit.errors import GateError, ModelError, UnavailableError, UsageError, VendorError
from deploykit.report import Finding, warning
from deploykit.runtime import Runtime, RuntimeOptions

if TYPE_CHECKING:
    from pathlib import Path

    from deploykit.runtime import Feeds, Outputs

# "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Foo(1) node with name 'n'"
_REFUSED = re.compile(r"Could not find an implementation for (?P<op>\w+)\(\d+\) node with name '(?P<node>[^']*)'")
_SIGNS = ("Could not find an implementation", "is not a registered function/op", "No Op registered")


class Door(Protocol):
    """A process that has the model loaded; see `node.NodeProcess`."""

    hello: dict[str, Any]
    pid: int

    def ask(self, request: bytes) -> tuple[dict[str, Any], bytes]:
        """Head and body of the answer to a request."""

    def close(self) -> None:
        """Ends the process."""


def load(path: Path, options: RuntimeOptions) -> Runtime:
    """The page's model, loaded by Node's wasm backend; `provider` chromium, or chromium-BACKEND, by the page itself.

    Raises ModelError (DK528, DK202) for a folder or model that is broken, GateError (DK201) for an operator that the
    backend lacks, UnavailableError (DK502, DK220) where Node, the package, the browser or the backend is not here.
    """
    return WebRuntime(path, options)


class WebRuntime(Runtime):
    """A model in ONNX Runtime Web."""

    def __init__(self, path: Path, options: RuntimeOptions) -> None:
        """Loads the model; see `load` for what it raises."""
        facts = read_facts(path)
        self.inputs, self.outputs = graph.interface(graph.load(path / facts["model"]))
        backend = _browser_backend(options, facts["backend"])
        self._door = _in_node(path, options) if backend is None else _in_browser(path, facts, backend, options)
        hello = self._door.hello
        if "error" in hello:
            self._door.close()
            raise _refusal(path, backend or "wasm", str(hello["error"]))
        self.engine = f"onnxruntime-web {hello['version']} ({backend or 'wasm'}, {hello['where']})"
        if hello.get("problem"):
            self.findings = [_sample(path, hello["problem"])]
        self.versions = {"onnxruntime-web": hello["version"], hello["program"]: hello["where"].rpartition(" ")[2]}

    def predict(self, feeds: Feeds) -> Outputs:
        """Outputs by name, in the model's own dtypes; feeds by input name in the declared dtypes."""
        head, body = self._door.ask(request(feeds, self.inputs))
        if "error" in head:
            raise VendorError(
                f"{self.engine} does not run the model: {_short(head['error'])}", target="onnxruntime-web"
            )
        return outputs_of(head, body)

    def close(self) -> None:
        """Ends Node or the browser."""
        self._door.close()


def _browser_backend(options: RuntimeOptions, own: str) -> str | None:
    """The backend that a browser is asked for; None for Node. Raises UsageError (DK804), UnavailableError (DK220)."""
    if options.device != "cpu":
        raise UnavailableError(
            f"--device {options.device} says nothing to ONNX Runtime Web",
            code="DK220",
            target="onnxruntime-web",
            hint=f"--provider {BROWSER}-webgpu runs the page in a browser on its GPU",
        )
    asked = options.provider or "node"
    if asked in ("node", "wasm"):
        return None
    browser, _, backend = asked.partition("-")
    if browser != BROWSER or (backend and backend not in SCRIPTS):
        raise UsageError(
            f"ONNX Runtime Web runs in node, {BROWSER}, or {', '.join(f'{BROWSER}-{name}' for name in SCRIPTS)}, "
            f"and not in {asked!r}",
            code="DK804",
            target="onnxruntime-web",
        )
    return backend or own


def _in_node(path: Path, options: RuntimeOptions) -> NodeProcess:
    node, package = find_node(), find_package()
    if node is None or package is None:
        raise UnavailableError(
            f"{path.name} cannot run on this machine: {why_not()}", code="DK502", target="onnxruntime-web"
        )
    return NodeProcess(node, package, path, options.threads)


def _in_browser(path: Path, facts: dict[str, Any], backend: str, options: RuntimeOptions) -> Door:
    from deploykit.converters.onnxruntime_web.browser import Browser

    program, package = find_browser(), find_package()
    if program is None or package is None:
        raise UnavailableError(
            f"{path.name} cannot run in a browser here: {why_no_browser()}",
            code="DK502",
            target="onnxruntime-web",
        )
    return Browser(program, package, path, facts, backend, options.threads)


def _refusal(path: Path, backend: str, message: str) -> Exception:
    """What the engine says of a model that it does not load, as an error that names the node where it does."""
    found = _REFUSED.search(message)
    if found is not None or any(sign in message for sign in _SIGNS):
        return GateError(
            f"ONNX Runtime Web's {backend} cannot run a node of {path.name}: {_short(message)}",
            code="DK201",
            file=path,
            node=found["node"] if found else None,
            op=found["op"] if found else None,
            target="onnxruntime-web",
            hint=f"deploykit check MODEL --target onnxruntime-web@{backend} names every such node",
        )
    if "no available backend" in message or "Failed to get GPU adapter" in message:
        return UnavailableError(
            f"the browser here has no {backend}: {_short(message)}", code="DK220", target="onnxruntime-web"
        )
    return ModelError(
        f"ONNX Runtime Web ({backend}) does not take {path.name}: {_short(message)}",
        code="DK202",
        file=path,
        target="onnxruntime-web",
        hint="a browser's memory for WebAssembly ends at 4 GB" if "alloc" in message.lower() else "",
    )


def _sample(path: Path, problem: str) -> Finding:
    return warning(
        "DK570",
        f"the sample that {path.name} shows does not run, and other inputs may: {_short(problem)}",
        target="onnxruntime-web",
        hint="--option sample=FILE.npz gives the page inputs that the model takes; --dim NAME=N bounds random ones",
    )


def _short(message: str) -> str:
    return " ".join(message.split())[:600]
