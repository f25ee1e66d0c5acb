"""The error tree: every failure carries a stable code, an exit code, the place, and what to do next.

Raised where the fact is known and rendered elsewhere (`deploykit.render`, `deploykit.cli`). Crosses process borders as
JSON (`as_dict`, `error_from_dict`).
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ExitCode(enum.IntEnum):
    """What the shell sees; the meaning of each number is a contract."""

    OK = 0
    GATE_FAILED = 1
    INVALID_INPUT = 2
    UNAVAILABLE = 3
    VENDOR_FAILED = 4
    BUG = 70
    INTERRUPTED = 130


class DeploykitError(Exception):
    """A failure that a user can act on.

    message: one sentence that names the file, node or tensor and says why.
    code: stable `DKnnn`, explained by `deploykit explain`.
    context: further lines of fact ("expected float32 [batch, 3, 224, 224]").
    hint: what to do next, ideally a command.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.INVALID_INPUT
    default_code: ClassVar[str] = "DK100"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        file: object = None,
        node: str | None = None,
        op: str | None = None,
        tensor: str | None = None,
        target: str | None = None,
        context: Iterable[str] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.file = None if file is None else str(file)
        self.node = node
        self.op = op
        self.tensor = tensor
        self.target = target
        self.context = tuple(context)
        self.hint = hint

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON-ready facts, with the class name that `error_from_dict` restores."""
        # A subclass from elsewhere crosses as the nearest class that the other side knows.
        known = next(cls.__name__ for cls in type(self).__mro__ if cls.__name__ in _CLASSES)
        return {
            "type": known,
            "message": self.message,
            "code": self.code,
            "file": self.file,
            "node": self.node,
            "op": self.op,
            "tensor": self.tensor,
            "target": self.target,
            "context": list(self.context),
            "hint": self.hint,
        }


class UsageError(DeploykitError):
    """An option or argument is wrong."""

    default_code = "DK800"


class InvalidFileError(DeploykitError):
    """An input file is missing, of the wrong kind, or unreadable."""

    default_code = "DK101"


class OutputError(DeploykitError):
    """The output cannot be written; nothing was changed."""

    default_code = "DK120"


class ModelError(DeploykitError):
    """The model file is broken, hostile or not what the command takes."""

    default_code = "DK110"


class DataError(DeploykitError):
    """Input data does not fit the model."""

    default_code = "DK300"


class ConfigError(DeploykitError):
    """A configuration file is wrong; the message has line and column."""

    default_code = "DK810"


class UnavailableError(DeploykitError):
    """Something is not installed or not present on this machine."""

    exit_code = ExitCode.UNAVAILABLE
    default_code = "DK500"


class MissingDependencyError(UnavailableError):
    """An optional package is missing; the hint is the command that installs it."""

    default_code = "DK501"


class GateError(DeploykitError):
    """The tool worked and a gate failed (unsupported operator, parity, budget); no artifact was published."""

    exit_code = ExitCode.GATE_FAILED
    default_code = "DK400"


class VendorError(DeploykitError):
    """A vendor tool failed or crashed.

    log: its last lines. reproduce: a shell command that runs the same call again.
    """

    exit_code = ExitCode.VENDOR_FAILED
    default_code = "DK510"

    def __init__(self, message: str, *, log: Iterable[str] = (), reproduce: str = "", **facts: Any) -> None:
        super().__init__(message, **facts)
        self.log = tuple(log)
        self.reproduce = reproduce

    def as_dict(self) -> dict[str, Any]:
        """As in the base class, with the vendor's last log lines and the reproducing command."""
        return {**super().as_dict(), "log": list(self.log), "reproduce": self.reproduce}


_CLASSES: dict[str, type[DeploykitError]] = {
    cls.__name__: cls
    for cls in (
        DeploykitError,
        UsageError,
        InvalidFileError,
        OutputError,
        ModelError,
        DataError,
        ConfigError,
        UnavailableError,
        MissingDependencyError,
        GateError,
        VendorError,
    )
}


def error_from_dict(facts: Mapping[str, Any]) -> DeploykitError:
    """The error that `as_dict` described, as an instance of its class."""
    fields = dict(facts)
    cls = _CLASSES[fields.pop("type")]
    return cls(fields.pop("message"), **fields)
