"""Rules keyed by (domain, op, since-version), looked up by the opset a model imports.

ONNX revises an operator by giving it a new since-version. A rule covers exactly the revisions it names, so that a
revision nobody has read is reported as not covered instead of being treated like its predecessor.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deploykit.opsupport.verdict import Verdict

F = TypeVar("F", bound="Callable[..., Any]")


@dataclasses.dataclass(frozen=True, slots=True)
class Entry(Generic[F]):
    """One rule: the function, the revisions it covers, and the predicate over a node that says when it applies."""

    domain: str
    op: str
    since: tuple[int, ...]
    function: F
    when: Callable[..., Verdict] | None = None


class Registry(Generic[F]):
    """The rules of one target.

    Example: `lowers = Registry().lowers`, then `@lowers("AveragePool", since=(7, 10, 11, 19, 22), when=_pool_limits)`.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str, int], Entry[F]] = {}

    def lowers(
        self,
        *ops: str,
        since: int | tuple[int, ...],
        when: Callable[..., Verdict] | None = None,
        domain: str = "",
    ) -> Callable[[F], F]:
        """Decorator: the function covers these operators in the revisions `since`.

        Raises ValueError when a revision already has a rule.
        """
        versions = (since,) if isinstance(since, int) else since

        def register(function: F) -> F:
            for op in ops:
                entry = Entry(_plain(domain), op, versions, function, when)
                for version in versions:
                    key = (entry.domain, op, version)
                    if key in self._entries:
                        raise ValueError(f"{key} has a rule already: {self._entries[key].function!r}")
                    self._entries[key] = entry
            return function

        return register

    def lookup(self, domain: str, op: str, opset: int) -> Entry[F] | None:
        """The rule for the revision of `op` that `opset` imports; None when that revision has none."""
        name = _plain(domain)
        if is_newer(name, opset):
            return None
        since = since_version(name, op, opset)
        if since is None:
            # No schema here (a vendor's domain): the newest rule not newer than the opset.
            since = max((v for d, o, v in self._entries if (d, o) == (name, op) and v <= opset), default=0)
        return self._entries.get((name, op, since))

    def revisions(self, domain: str, op: str) -> tuple[int, ...]:
        """The since-versions of `op` that have a rule, ascending."""
        return tuple(sorted(v for d, o, v in self._entries if (d, o) == (_plain(domain), op)))

    def __iter__(self) -> Iterator[Entry[F]]:
        """Every rule once, by domain, operator and first revision."""
        seen: dict[tuple[str, str, tuple[int, ...]], Entry[F]] = {}
        for entry in self._entries.values():
            seen.setdefault((entry.domain, entry.op, entry.since), entry)
        return iter(seen[key] for key in sorted(seen))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _plain(domain: str) -> str:
    """`ai.onnx` is the written-out name of the default domain."""
    return "" if domain == "ai.onnx" else domain


@functools.lru_cache(maxsize=4096)
def since_version(domain: str, op: str, opset: int) -> int | None:
    """The revision of an ONNX operator that `opset` means; None when the installed onnx knows no such operator."""
    from onnx import defs

    try:
        schema = defs.get_schema(op, max_inclusive_version=opset, domain=_plain(domain))
    except defs.SchemaError:
        return None
    return int(schema.since_version)


@functools.cache
def newest_opset(domain: str) -> int | None:
    """The newest opset of a domain that the installed onnx knows; None for a domain of somebody else's."""
    from onnx import defs

    versions = [schema.since_version for schema in defs.get_all_schemas_with_history() if schema.domain == domain]
    return defs.onnx_opset_version() if not domain else max(versions, default=None)


def is_newer(domain: str, opset: int) -> bool:
    """Whether an opset is newer than all that is known here, so that its operators may mean something else."""
    newest = newest_opset(_plain(domain))
    return newest is not None and opset > newest
