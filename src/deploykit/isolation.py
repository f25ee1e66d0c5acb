"""Vendor code in worker processes: a crash is an error with the last log lines, never the end of deploykit.

A `WorkerPool` keeps one process for each kind of vendor, so that a slow import is paid once in a pipeline.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from deploykit import io
from deploykit import worker as worker_module
from deploykit.child_environment import ELSEWHERE, FIXED, QUIET, signal_name
from deploykit.errors import DeploykitError, UnavailableError, VendorError, error_from_dict
from deploykit.progress import OnProgress, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    LogListener = Callable[[str, list[str]], None]  # the worker's name, all lines of its log

LOG_LINES = 20
_SCRIPT = str(Path(worker_module.__file__).resolve())
_SIGKILL = getattr(signal, "SIGKILL", -1)
_log_listener: contextvars.ContextVar[LogListener | None] = contextvars.ContextVar("log listener", default=None)


class _GoneError(VendorError):
    """The process ended in another thread's call, which says nothing about this one."""


class Worker:
    """One child process that answers requests in turn."""

    def __init__(
        self, name: str, *, interpreter: str = sys.executable, environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts the process; its imports happen with the first request."""
        self.name = name
        self.interpreter = interpreter
        self._environment = {**QUIET, **(environment or {})}
        # The child appends and we read, each with a position of its own: one shared position would move under writes.
        handle, self._log_name = tempfile.mkstemp(prefix="deploykit-", suffix=".log")
        os.close(handle)
        # Its temporary files, copies of whole models among them, go when it ends: killed, it cannot remove them itself.
        self._scratch = tempfile.TemporaryDirectory(prefix="deploykit-worker-", ignore_cleanup_errors=True)
        temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), self._scratch.name)
        with Path(self._log_name).open("ab") as child_end:
            self._process = subprocess.Popen(
                [interpreter, _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=child_end,
                env={**os.environ, **temporary, **self._environment},
                process_group=0,  # Ctrl-C would end it before it has learned to leave signals to us
                text=True,
                encoding="utf-8",
            )
        self._log = Path(self._log_name).open("rb")  # noqa: SIM115 - lives as long as the process
        self._turn = threading.Lock()
        self._ending = self._over = False
        self._forget_log()

    def _forget_log(self) -> None:
        # At once where open files can be unlinked, so that a killed parent leaves nothing; on Windows when closed.
        with contextlib.suppress(OSError):
            Path(self._log_name).unlink(missing_ok=True)

    @property
    def alive(self) -> bool:
        """Whether the process still answers."""
        return not self._over and self._process.poll() is None

    def call(
        self,
        function: str,
        arguments: Mapping[str, Any],
        *,
        block: Sequence[str] = (),
        timeout: float | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Calls `package.module:function(**arguments)` in the process; arguments and result are JSON values.

        block: top-level packages whose import is to fail there. timeout: seconds, then the process is killed.
        With `on_progress` the function must take an `on_progress` argument.
        Raises the DeploykitError that the function raised, or VendorError for anything else.
        """
        request = {
            "function": function,
            "arguments": dict(arguments),
            "block": list(block),
            "progress": on_progress is not None,
        }
        with self._turn:
            if self._over or self._ending:  # since this call began to wait
                raise (VendorError if self._ending else _GoneError)(f"{self.name} ended before its turn came")
            start = self.log_position()
            expired = threading.Event()
            timer = self._kill_after(timeout, expired)
            try:
                answer = self._exchange(request, on_progress)
            except BaseException:  # an interrupt, too: its answer would be taken for the next one
                self.kill()
                raise
            finally:
                if timer is not None:
                    timer.cancel()
            self._over = answer is None
        if answer is None:
            raise self._died(request, start, timeout if expired.is_set() else None)
        if "error" in answer:
            raise self._completed(error_from_dict(answer["error"]), request, start)
        if "exception" in answer:
            raise self._failed(request, start, answer["exception"])
        return answer["result"]

    def _kill_after(self, timeout: float | None, expired: threading.Event) -> threading.Timer | None:
        if timeout is None:
            return None

        def expire() -> None:
            expired.set()
            self._process.kill()

        timer = threading.Timer(timeout, expire)
        timer.daemon = True
        timer.start()
        return timer

    def _exchange(self, request: dict[str, Any], on_progress: OnProgress | None) -> dict[str, Any] | None:
        """The answer, or None when the process died first."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            return None
        text = json.dumps(request) + "\n"
        with contextlib.suppress(BrokenPipeError):
            stdin.write(text)
            stdin.flush()
        for line in stdout:
            if not line.endswith("\n"):  # it died in the middle of its answer
                return None
            message: dict[str, Any] = json.loads(line)
            if "progress" in message:
                if on_progress is not None:
                    on_progress(Progress(**message["progress"]))
                continue
            return message
        return None

    def log_since(self, start: int) -> list[str]:
        """The vendor's lines after a position of the log."""
        try:
            self._log.seek(start)
            text = self._log.read().decode("utf-8", errors="replace")
        except ValueError:  # closed: another thread has ended the process on purpose
            return []
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    def log_position(self) -> int:
        """The end of the log, for `log_since`."""
        return self._log.seek(0, os.SEEK_END)

    def _died(self, request: dict[str, Any], start: int, timeout: float | None) -> VendorError:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # it closed its end and lives on
            self._process.kill()
            code = self._process.wait()
        hint = "run the reproducing command; deploykit itself and its outputs are unharmed"
        if timeout is not None:
            how = f"did not answer within {timeout:g} s and was stopped"
        elif code < 0:
            how = f"crashed with {signal_name(-code)}"
            if -code == _SIGKILL:
                hint = "the system killed it, most likely for lack of memory: free some, or use a smaller input"
        else:
            how = f"ended with exit code {code}"
        log = self.log_since(start)[-LOG_LINES:]
        self.close()
        return VendorError(
            f"{self.name} {how} in {request['function']}",
            code="DK512" if timeout is not None else "DK511",
            log=log,
            # Ended on purpose, from another thread: nobody wants that again, and a request kept for it would stay.
            reproduce="" if self._ending else self._reproduce(request),
            hint=hint,
        )

    def _failed(self, request: dict[str, Any], start: int, problem: Mapping[str, Any]) -> Exception:
        if problem["ours"]:
            # Our own code failed in the worker: a bug, with the child's traceback.
            return RuntimeError(f"in worker {self.name}: {problem['traceback']}")
        last = [line for line in self.log_since(start) if not line.startswith(("Traceback ", "  File "))]
        return VendorError(
            f"{self.name} failed: {problem['type']}: {str(problem['message']).strip()[:2000]}",
            log=last[-LOG_LINES:],
            reproduce=self._reproduce(request),
        )

    def _completed(self, problem: DeploykitError, request: dict[str, Any], start: int) -> DeploykitError:
        """A vendor's failure that a job recognised still needs the log and the command, which only this side knows."""
        if isinstance(problem, VendorError):
            problem.log = problem.log or tuple(self.log_since(start)[-LOG_LINES:])
            problem.reproduce = problem.reproduce or self._reproduce(request)
        return problem

    def _reproduce(self, request: dict[str, Any]) -> str:
        """A shell command that runs the request again; the request is kept in a file for it."""
        try:
            folder = Path(tempfile.mkdtemp(prefix="deploykit-failed-"))
            file = folder / "request.json"
            kept = {
                **request,
                "arguments": io.keep_files(request["arguments"], folder),
                "environment": self._environment,
            }
            file.write_text(json.dumps(kept, indent=2), encoding="utf-8")
        except OSError:  # no room to keep it: the error that is being reported matters more
            return ""
        # Relative paths of the request count from here.
        return f"cd {shlex.quote(str(Path.cwd()))} && {shlex.join([self.interpreter, _SCRIPT, str(file)])}"

    def finish(self) -> None:
        """Tells the process that no request follows, without waiting for its end."""
        self._ending = True
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def kill(self) -> None:
        """Stops the process at once."""
        self._ending = True
        if self.alive:
            self._process.kill()
        self.close()

    def close(self) -> None:
        """Ends the process after what it is doing and frees its log."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        listener = _log_listener.get()
        if listener is not None and not self._log.closed:
            listener(self.name, self.log_since(0))
        self._log.close()
        self._forget_log()
        self._scratch.cleanup()


class WorkerPool:
    """Workers by name, started when first needed and again after a crash; a context manager that ends them all."""

    def __init__(self) -> None:
        """An empty pool; no process starts here."""
        self._workers: dict[str, Worker] = {}
        self._ended: list[Worker] = []
        self._starting = threading.Lock()
        self._closed = False

    def get(self, name: str, interpreter: str | None = None) -> Worker:
        """The live worker of that name."""
        with self._starting:
            found = self._workers.get(name)
            if found is not None and not found.alive:
                found.close()
            if found is None or not found.alive:
                if interpreter is not None and not Path(interpreter).exists():
                    raise UnavailableError(f"no interpreter for {name}: {interpreter}", hint="deploykit doctor")
                elsewhere = {} if interpreter is None else ELSEWHERE
                single = Worker(name, interpreter=interpreter or sys.executable, environment=elsewhere)
                found = self._workers[name] = single
            return found

    def end(self, name: str) -> None:
        """Ends a worker without waiting for it, so that its memory is free; another call starts a new one."""
        with self._starting:
            found = self._workers.pop(name, None)
        if found is not None:
            found.finish()
            self._ended.append(found)

    def warm(self, wanted: Mapping[str, tuple[Sequence[str], Sequence[str]]]) -> None:
        """Has workers import modules while the caller does something else; a call to one of them waits for its turn.

        wanted: {worker name: (modules, blocked packages)}, taken one after the other so that one core is used.
        What fails to import fails again, and is reported, where it is used.
        """

        def load() -> None:
            for name, (modules, block) in wanted.items():
                if self._closed:
                    return
                with contextlib.suppress(DeploykitError, RuntimeError, OSError, ValueError):
                    self.get(name).call("deploykit.lazy:load_early", {"modules": list(modules)}, block=block)

        threading.Thread(target=load, daemon=True).start()

    def close(self, *, kill: bool = False) -> None:
        """Ends every worker; all at the same time, since an interpreter with a vendor in it takes a while."""
        self._closed = True
        while self._workers:
            self.end(next(iter(self._workers)))
        while self._ended:
            found = self._ended.pop()
            (found.kill if kill else found.close)()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(kill=kind is not None)


_current: contextvars.ContextVar[WorkerPool | None] = contextvars.ContextVar("workers", default=None)


@contextlib.contextmanager
def vendor_logs(listener: LogListener) -> Iterator[None]:
    """Gives the listener every worker's log when the worker ends, for `--verbose`."""
    token = _log_listener.set(listener)
    try:
        yield
    finally:
        _log_listener.reset(token)


@contextlib.contextmanager
def workers() -> Iterator[WorkerPool]:
    """Gives the pool of the surrounding block, or a new one that ends with this one."""
    outer = _current.get()
    if outer is not None:
        yield outer
        return
    with WorkerPool() as pool:
        token = _current.set(pool)
        try:
            yield pool
        finally:
            _current.reset(token)


def run_alone(
    name: str,
    function: str,
    arguments: Mapping[str, Any],
    *,
    block: Sequence[str] = (),
    interpreter: str | None = None,
) -> Any:
    """Calls a function in a new worker with memory at fixed addresses, for a vendor whose bytes depend on them."""
    elsewhere = {} if interpreter is None else ELSEWHERE
    single = Worker(name, interpreter=interpreter or sys.executable, environment={**elsewhere, **FIXED})
    try:
        return single.call(function, arguments, block=block)
    finally:
        single.close()


def run_isolated(
    name: str,
    function: str,
    arguments: Mapping[str, Any],
    *,
    interpreter: str | None = None,
    block: Sequence[str] = (),
    timeout: float | None = None,
    on_progress: OnProgress | None = None,
) -> Any:
    """Calls a function in the worker `name` of the current pool; see `Worker.call`.

    Two calls with different `block` lists must use different names: a package, once imported, stays.
    """
    with workers() as pool:
        while True:
            with contextlib.suppress(_GoneError):
                return pool.get(name, interpreter).call(
                    function, arguments, block=block, timeout=timeout, on_progress=on_progress
                )
