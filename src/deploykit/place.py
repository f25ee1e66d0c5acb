"""A further place where a runtime can run an artifact."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Another place where a runtime can run an artifact: a browser, say.

    name: of the comparison there. provider: what the runtime knows it by. samples: at most so many are compared.
    refused: how a failure there begins where it is no failure of the conversion; "" where it is one.
    """

    name: str
    provider: str
    samples: int
    refused: str = ""
