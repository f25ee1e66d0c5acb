"""Why a request was not answered: errors of the data plane, which knows no protocol.

HTTP and gRPC translate the class into a status; the message is for the client and names tensor, fact and remedy.
"""

from __future__ import annotations

from typing import ClassVar

from deploykit.errors import DeploykitError, ExitCode


class RequestError(DeploykitError):
    """One request cannot be answered; the others are not affected."""

    default_code = "DK711"


class UnreadableRequestError(RequestError):
    """The message is not what the protocol says: broken JSON, missing fields, sizes that do not fit."""

    default_code = "DK711"


class UnfitInputError(RequestError):
    """The message is well-formed and does not fit the model: name, datatype, shape, values."""

    default_code = "DK712"


class UnsupportedRequestError(RequestError):
    """The request asks for a part of the protocol that this server does not have."""

    default_code = "DK713"


class UnknownModelError(RequestError):
    """No model, or no version, of that name."""

    default_code = "DK710"


class UnauthorizedError(RequestError):
    """The request lacks the server's token, or has another one."""

    default_code = "DK731"


class ForbiddenError(RequestError):
    """The server was not started to let clients do this."""

    default_code = "DK728"


class LoadError(RequestError):
    """A model that a client asks for cannot be loaded."""

    default_code = "DK729"


class TooLargeError(RequestError):
    """The request is larger than the limit."""

    default_code = "DK714"


class SlowRequestError(RequestError):
    """The client stopped sending in the middle of its request."""

    default_code = "DK717"


class NotReadyError(RequestError):
    """The model is still loading, or the server is full or stopping: the same request may work later."""

    exit_code: ClassVar[ExitCode] = ExitCode.UNAVAILABLE
    default_code = "DK715"


class ExpiredError(RequestError):
    """The request has waited longer than its own timeout."""

    exit_code: ClassVar[ExitCode] = ExitCode.UNAVAILABLE
    default_code = "DK719"


class InferenceError(RequestError):
    """The engine failed on this request's values, and works on others."""

    default_code = "DK716"


class EngineError(RequestError):
    """The engine failed, and not because of the request."""

    exit_code: ClassVar[ExitCode] = ExitCode.VENDOR_FAILED
    default_code = "DK718"
