"""Logs as JSON lines on stderr, written by a thread of their own so that a slow reader does not stop the server."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import logging.handlers
import queue
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGGER = "deploykit.serving"
_BACKLOG = 10_000


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, event, and the fields that the call gave as `extra={"fields": ...}`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Bounded(logging.handlers.QueueHandler):
    """Drops lines when nobody reads them: memory and requests matter more."""

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        return record  # the listener is a thread of this process: nothing has to be picklable

    def enqueue(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(queue.Full):
            self.queue.put_nowait(record)


@contextlib.contextmanager
def json_logs(level: int, stream: TextIO | None = None) -> Iterator[logging.Logger]:
    """The server's logger, and warnings of Python and its libraries, as JSON lines on the stream while the block runs.

    stream: stderr when None.
    """
    backlog: queue.Queue[logging.LogRecord] = queue.Queue(_BACKLOG)
    writer = logging.StreamHandler(stream or sys.stderr)
    writer.setFormatter(JsonFormatter())
    listener = logging.handlers.QueueListener(backlog, writer)
    handler = _Bounded(backlog)
    quiet = max(level, logging.WARNING)
    loggers = {LOGGER: level, **dict.fromkeys(("uvicorn", "asyncio", "grpc", "py.warnings"), quiet)}
    before = {name: (logging.getLogger(name).level, logging.getLogger(name).propagate) for name in loggers}
    for name, wanted in loggers.items():
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(wanted)
        logger.propagate = False
    listener.start()
    logging.captureWarnings(True)
    try:
        yield logging.getLogger(LOGGER)
    finally:
        logging.captureWarnings(False)
        listener.stop()
        for name, (old_level, propagate) in before.items():
            logger = logging.getLogger(name)
            logger.removeHandler(handler)
            logger.setLevel(old_level)
            logger.propagate = propagate
