"""State carried from call to call: outputs of one call that are inputs of the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np


class CarriedState:
    """Fills carried inputs from the outputs of the previous call.

    A feed that has the input resets its state; a feed that lacks it takes the named output of the previous call.
    """

    def __init__(self, carry: Mapping[str, str]) -> None:
        """carry: {input: output}."""
        self._carry = dict(carry)
        self._state: dict[str, np.ndarray[Any, Any]] = {}

    def fill(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """The feeds with the carried inputs in them; DataError (DK328) when there is no previous call."""
        filled = dict(feeds)
        for name, output in self._carry.items():
            if name in filled:
                continue
            if name not in self._state:
                raise DataError(
                    f"input {name!r} is carried from output {output!r}, and the first feed does not give its start",
                    code="DK328",
                    tensor=name,
                    hint=f"give {name!r} in the first feed, for example zeros",
                )
            filled[name] = self._state[name]
        return filled

    def update(self, outputs: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Keeps what the next call needs; DataError (DK328) when the model has no such output."""
        for name, output in self._carry.items():
            if output not in outputs:
                raise DataError(
                    f"input {name!r} is to be carried from output {output!r}, which the model does not have",
                    code="DK328",
                    tensor=output,
                    context=["it has " + ", ".join(repr(known) for known in outputs)],
                    hint=f"set inputs.{name}.carry in deploykit.yaml to one of them",
                )
            self._state[name] = outputs[output]
