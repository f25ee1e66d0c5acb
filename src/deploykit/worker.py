"""The child side of `deploykit.isolation`: runs vendor code where it can print, crash and leak without harm.

Started as a script by any interpreter, so it imports the standard library only. Requests come as JSON lines on stdin,
answers go as JSON lines to the original stdout; file descriptors 1 and 2 then belong to the vendor's log.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import json
import os
import queue
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from types import FrameType

_PACKAGE = Path(__file__).resolve().parent


def _adopt_package(folder: Path) -> None:
    """Makes `deploykit` importable from `folder` without putting its neighbours on the path of this interpreter."""
    if importlib.util.find_spec("deploykit") is not None:
        return
    spec = importlib.util.spec_from_file_location(
        "deploykit", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["deploykit"] = module
    spec.loader.exec_module(module)


def _call(request: dict[str, Any], emit: Any) -> dict[str, Any]:
    module, _, name = request["function"].partition(":")
    for blocked in request.get("block", ()):
        # None makes the import fail at once: coremltools and onnxsim pull in torch and TensorFlow when they can.
        sys.modules.setdefault(blocked, None)  # type: ignore[arg-type]
    function = getattr(importlib.import_module(module), name)
    arguments = dict(request["arguments"])
    if request.get("progress"):

        def on_progress(step: Any) -> None:
            emit({"progress": {"stage": step.stage, "item": step.item, "done": step.done, "total": step.total}})

        arguments["on_progress"] = on_progress
    answer = {"result": function(**arguments)}
    try:
        json.dumps(answer)
    except (TypeError, ValueError) as problem:  # this call's failure, and not the end of the worker
        message = f"{request['function']} returned what JSON cannot hold: {problem}"
        raise TypeError(message) from problem
    return answer


def _answer(request: dict[str, Any], emit: Any) -> dict[str, Any]:
    try:
        return _call(request, emit)
    except BaseException as problem:  # everything, SystemExit of vendor code too, must reach the parent
        with contextlib.suppress(OSError):  # on a full disk the log is full too
            traceback.print_exc()
        from deploykit.errors import DeploykitError, MissingDependencyError
        from deploykit.io import disk_full, is_no_space

        if isinstance(problem, DeploykitError):
            return {"error": problem.as_dict()}
        if isinstance(problem, OSError) and is_no_space(problem):
            return {"error": disk_full(problem.filename or request.get("output") or "the output").as_dict()}
        if isinstance(problem, ModuleNotFoundError) and (problem.name or "").partition(".")[0] != "deploykit":
            missing = MissingDependencyError(
                f"{request['function']} needs a package that cannot be imported: {problem}", hint="deploykit doctor"
            )
            return {"error": missing.as_dict()}
        return {
            "exception": {
                "type": type(problem).__name__,
                "message": str(problem),
                "ours": _is_ours(problem),
                "traceback": traceback.format_exc(),
            }
        }


def _is_ours(problem: BaseException) -> bool:
    """Whether our own code raised it: a bug, not a vendor's failure.

    Extension modules have no frames, so what they raise seems to come from our line: mostly RuntimeError, SystemError
    or a class of their own, none of which our code raises by mistake.
    """
    frames = traceback.extract_tb(problem.__traceback__)
    if not frames or isinstance(problem, (RuntimeError, SystemError, MemoryError, SystemExit)):
        return False
    if type(problem).__module__ not in ("builtins", "json.decoder"):
        return False
    return Path(frames[-1].filename).resolve().is_relative_to(_PACKAGE)


def _leave_own_folder() -> None:
    """A script's folder is on its path: our `io.py` must not shadow the standard library's."""
    if sys.path and Path(sys.path[0] or ".").resolve() == _PACKAGE:
        del sys.path[0]


def _leave_signals_to_the_parent() -> None:
    """Ctrl-C, `timeout` and a closed terminal reach the whole group, and the parent decides what they mean."""
    ours = os.getpid()

    def wait_for_the_parent(number: int, frame: FrameType | None) -> None:
        if os.getpid() != ours:  # a fork of the vendor's, which ends it this way
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None:
            # A handler, because ignoring would be inherited by programs that the vendor starts and has to end.
            signal.signal(number, wait_for_the_parent)
            if hasattr(signal, "siginterrupt"):
                signal.siginterrupt(number, False)


def _fix_addresses() -> None:
    """Starts this interpreter again with memory at the same addresses every time, where the parent asks for it.

    TensorRT-RTX numbers what it compiles by address: an INT8 engine otherwise differs from run to run. Linux only;
    elsewhere, and where the system refuses it, the process goes on as it is.
    """
    if os.environ.pop("DEPLOYKIT_FIXED_ADDRESSES", None) is None or sys.platform != "linux":
        return
    import ctypes

    no_randomization = 0x0040000  # ADDR_NO_RANDOMIZE, <sys/personality.h>
    libc = ctypes.CDLL(None)
    current = libc.personality(0xFFFFFFFF)
    if current != -1 and not current & no_randomization and libc.personality(current | no_randomization) != -1:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main() -> None:
    """Answers requests until stdin closes; leaves at once when it closes in the middle of one."""
    _leave_own_folder()
    _fix_addresses()
    _leave_signals_to_the_parent()
    channel: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    incoming: TextIO = os.fdopen(os.dup(0), "r", encoding="utf-8")
    os.dup2(2, 1)
    # Vendor code that asks a question gets no answer instead of our next request.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    lock = threading.Lock()
    requests: queue.Queue[str | None] = queue.Queue()
    busy = threading.Event()

    def emit(message: dict[str, Any]) -> None:
        with lock:
            channel.write(json.dumps(message) + "\n")
            channel.flush()

    def read() -> None:
        for line in incoming:
            busy.set()
            requests.put(line)
        if busy.is_set():
            os._exit(1)  # the parent is gone: nobody waits for this answer
        requests.put(None)

    _adopt_package(_PACKAGE)
    threading.Thread(target=read, daemon=True).start()
    while (line := requests.get()) is not None:
        answer = _answer(json.loads(line), emit)
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        if requests.empty():
            busy.clear()
        emit(answer)
    _leave()


def _leave() -> None:
    """Ends the process after its exit handlers (vendors remove their temporary files there).

    Tearing down an interpreter that holds torch or OpenVINO takes up to a second, for nothing: the parent waits for it.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def replay(file: Path) -> int:
    """Runs one recorded request in this process, prints included: what an error's reproducing command does.

    Prints the answer as JSON; returns 0, or 1 when the request failed again.
    """
    _leave_own_folder()
    _adopt_package(_PACKAGE)
    request = json.loads(file.read_text(encoding="utf-8"))
    os.environ.update(request.get("environment", {}))
    # A progress listener is part of the call; here nobody listens.
    answer = _answer(request, lambda _: None)
    print(json.dumps(answer, indent=2))  # noqa: T201 - this is the command's output
    return 0 if "result" in answer else 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        raise SystemExit(replay(Path(sys.argv[1])))
    else:
        main()
