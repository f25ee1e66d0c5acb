"""The process around the application: the socket, loading in the background, signals, draining."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.server import HANDLED_SIGNALS

from deploykit.errors import UsageError
from deploykit.serving.access import Access
from deploykit.serving.http import create_app
from deploykit.serving.inference import Limits
from deploykit.serving.lanes import THREAD_PREFIX
from deploykit.serving.logs import LOGGER
from deploykit.serving.metrics import Metrics
from deploykit.serving.protocol import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from deploykit.serving.dataplane import DataPlane
    from deploykit.serving.grpc_service import GrpcServer

KEEP_ALIVE_SECONDS = 75
DRAIN_SECONDS = 30
# A request that was on its way when the stop signal came is read and answered within this time.
_LAST_CALL_SECONDS = 0.3


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address; port 0 picks a free one.

    Raises UsageError: DK701 the port is taken or not allowed, DK702 the host is no address of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as problem:
        raise _no_such_host(host, str(getattr(problem, "strerror", None) or problem)) from problem
    # `localhost` is also ::1, where clients that only try 127.0.0.1 find nobody.
    family, kind, protocol, _, address = sorted(found, key=lambda row: row[0] != socket.AF_INET)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        if hasattr(socket, "SO_REUSEADDR") and hasattr(socket, "AF_UNIX"):  # on Windows it would share the port
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # Now, and not when the model is loaded: two servers on one port must not find out minutes later.
        bound.listen(2048)
    except OSError as problem:
        bound.close()
        if problem.errno == errno.EADDRNOTAVAIL:
            raise _no_such_host(host, str(problem.strerror)) from problem
        raise UsageError(
            f"cannot listen on {host} port {port}: {problem.strerror}",
            code="DK701",
            hint="choose another one with --http-port; 0 picks a free one",
        ) from problem
    bound.setblocking(False)
    return bound


def _no_such_host(host: str, why: str) -> UsageError:
    return UsageError(
        f"cannot listen on {host!r}: {why}",
        code="DK702",
        hint="--host 127.0.0.1 for this machine only, 0.0.0.0 for every network it is in",
    )


class _Uvicorn(uvicorn.Server):
    """Uvicorn that ends with our exit codes and finishes what has reached it."""

    def __init__(
        self, config: uvicorn.Config, plane: DataPlane, grpc: GrpcServer | None, reload_seconds: float | None
    ) -> None:
        super().__init__(config)
        self._plane = plane
        self._grpc = grpc
        self._reload_seconds = reload_seconds
        self._watching: asyncio.Task[None] | None = None
        self.problem: Exception | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Both protocols listen, or none."""
        if self._grpc is not None:
            try:
                await self._grpc.start()
            except UsageError as problem:  # raised again by whoever runs the server
                self.problem = problem
                self.should_exit = True
                return
        await super().startup(sockets)
        if self._reload_seconds is not None and self._plane.catalog is not None:
            watching = self._plane.catalog.watch(self._reload_seconds)
            self._watching = asyncio.get_running_loop().create_task(watching)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stops on SIGINT and SIGTERM, at once on the second one; unlike uvicorn's, does not raise them again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._stop) for number in HANDLED_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Not ready any more, no new connections, a last call for requests on their way, then uvicorn's own end."""
        self._plane.draining = True
        if self._watching is not None:
            self._watching.cancel()
        await asyncio.sleep(0)  # connections that the system has completed are accepted in this turn
        for server in self.servers:
            server.close()
        if not self.force_exit:
            await asyncio.sleep(_LAST_CALL_SECONDS)
        if self._grpc is not None:
            await asyncio.gather(super().shutdown(sockets), self._grpc.stop(0 if self.force_exit else DRAIN_SECONDS))
        else:
            await super().shutdown(sockets)
        # With force, uvicorn leaves at once: those who wait are told, not just dropped.
        for task in list(self.server_state.tasks):
            task.cancel()
        await asyncio.gather(*self.server_state.tasks, return_exceptions=True)


class Server:
    """One server process: `run` blocks until a signal, `stop`, or a model that cannot be loaded."""

    def __init__(
        self,
        plane: DataPlane,
        bound: socket.socket,
        limits: Limits | None = None,
        grpc_address: tuple[str, int] | None = None,
        reload_seconds: float | None = None,
        token: str | None = None,
    ) -> None:
        """bound: from `listen`. grpc_address: host and port for gRPC, 0 for a free one; None for HTTP alone.

        reload_seconds: how often the repository is looked at for new versions; None: never. token: what clients must
        bring; None lets everybody in.
        """
        limits = limits or Limits()
        metrics = Metrics(plane)
        access = Access(token)
        self._plane = plane
        self._socket = bound
        self._problem: BaseException | None = None
        self._log = logging.getLogger(LOGGER)
        config = uvicorn.Config(
            create_app(plane, limits, metrics, access),
            http=Connection,
            ws="none",
            loop="auto",  # uvloop where it is
            lifespan="off",
            proxy_headers=False,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
        self._grpc = None
        if grpc_address is not None:
            from deploykit.serving.grpc_service import GrpcServer

            self._grpc = GrpcServer(plane, metrics, limits, access, grpc_address)
        self._server = _Uvicorn(config, plane, self._grpc, reload_seconds)

    @property
    def port(self) -> int:
        """The port in use."""
        found: int = self._socket.getsockname()[1]
        return found

    @property
    def grpc_port(self) -> int | None:
        """The gRPC port, once the server has started; None without gRPC."""
        return None if self._grpc is None else self._grpc.port

    def stop(self) -> None:
        """Drains and ends `run`; from any thread."""
        self._server.should_exit = True

    def run(self, on_ready: Callable[[], None]) -> int:
        """Serves; health answers at once, the models are loaded meanwhile, then `on_ready` is called.

        Returns how many requests were cut off because they did not end within DRAIN_SECONDS.
        Raises what loading raised; KeyboardInterrupt when a second signal asked to stop without draining.
        """
        port = self.port
        threading.Thread(target=self._load, args=(on_ready,), name=f"{THREAD_PREFIX}load", daemon=True).start()
        self._log.info("listening", extra={"fields": {"address": self._socket.getsockname()[0], "port": port}})
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._plane.close()
        for problem in (self._server.problem, self._problem):
            if problem is not None:
                raise problem
        if self._server.force_exit:
            raise KeyboardInterrupt
        self._log.info("stopped", extra={"fields": {"cut_off": self._plane.cut_off}})
        return self._plane.cut_off

    def _load(self, on_ready: Callable[[], None]) -> None:
        try:
            # A server that cannot listen must not leave an engine half loaded behind.
            while not self._server.started and not self._server.should_exit:
                threading.Event().wait(0.01)
            if self._server.should_exit:
                return
            for model in self._plane.models:
                model.load()
                self._log.info(
                    "loaded",
                    extra={
                        "fields": {
                            "model": model.name,
                            "version": model.version,
                            "engine": model.engine,
                            "lanes": model.capacity.lanes,
                            "threads": model.capacity.threads,
                            "max_batch": model.policy.max_rows,
                            **({"alone_because": model.alone_because} if model.alone_because else {}),
                        }
                    },
                )
                if model.warm_up_problem is not None:
                    self._log.warning(
                        "no warm-up", extra={"fields": {"model": model.name, "why": model.warm_up_problem}}
                    )
            if not self._server.should_exit:
                on_ready()
        except BaseException as problem:  # raised again in the thread that runs the server
            self._problem = problem
            self._server.should_exit = True
