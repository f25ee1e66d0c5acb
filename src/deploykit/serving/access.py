"""Who may use a server: a bearer token, for both protocols."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_LEAST = 16
# Probes of orchestrators carry no token, and learn nothing but readiness.
OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")


class Access:
    """Compares what a request brings with the token; without a token everybody may do everything."""

    def __init__(self, token: str | None) -> None:
        """token: from `read_token`."""
        self._wanted = None if token is None else token.encode()

    def allows(self, authorization: bytes | None) -> bool:
        """Whether a request with this header's value is let in; the time it takes does not tell how much is right."""
        if self._wanted is None:
            return True
        scheme, _, given = (authorization or b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._wanted)


def read_token(file: Path) -> str:
    """The token in a file, without the white space around it.

    A file, because other users of the machine see a command's arguments. Raises UsageError (DK730) for a file that
    cannot be read, or a token that is short or cannot stand in a header.
    """
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"cannot read the token file {file}: {problem}", code="DK730", file=file) from problem
    if len(token) < _LEAST or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(
            f"{file} holds no usable token: at least {_LEAST} visible ASCII characters on one line",
            code="DK730",
            file=file,
            hint=f"openssl rand -hex 32 > {file}",
        )
    return token
