"""The deployment target that `@version` and `--option minimum_deployment_target` name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

TARGETS = ("iOS16", "iOS17", "iOS18")
DEFAULT = "iOS17"


def deployment_target(options: Mapping[str, Any]) -> str:
    """The oldest system that is to load the package. The option wins over the version of `coreml@iOS16`.

    Raises UsageError (DK527) for another value.
    """
    value = str(options.get("minimum_deployment_target") or options.get("version") or DEFAULT)
    if value not in TARGETS:
        raise UsageError(
            f"minimum_deployment_target {value!r} is none of {', '.join(TARGETS)}",
            code="DK527",
            target="coreml",
            hint=f"--option minimum_deployment_target={DEFAULT}",
        )
    return value
