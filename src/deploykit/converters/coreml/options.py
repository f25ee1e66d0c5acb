"""What the options of the target say: the oldest system, and the package's author, licence and descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deploykit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TARGETS = ("iOS16", "iOS17", "iOS18", "iOS26")
# The same specification and operators (coremltools 9.0, `AvailableTarget`).
ALIASES = {"macOS13": "iOS16", "macOS14": "iOS17", "macOS15": "iOS18", "macOS26": "iOS26"}
DEFAULT = "iOS17"
# Fields of the package's metadata by option; nothing is written that the user does not say.
METADATA = {
    "author": "author",
    "license": "license",
    "description": "shortDescription",
    "model_version": "versionString",
}
DESCRIBE = "describe."


def deployment_target(options: Mapping[str, Any]) -> str:
    """The oldest system that is to load the package, as iOS names it. The option wins over `coreml@iOS16`.

    Raises UsageError (DK527) for another value.
    """
    value = str(options.get("minimum_deployment_target") or options.get("version") or DEFAULT)
    known = {name.casefold(): name for name in TARGETS} | {name.casefold(): ios for name, ios in ALIASES.items()}
    if value.casefold() not in known:
        raise _wrong(
            f"minimum_deployment_target {value!r} is none of {', '.join((*TARGETS, *ALIASES))}",
            f"--option minimum_deployment_target={DEFAULT}",
        )
    return known[value.casefold()]


def flag(options: Mapping[str, Any], name: str, *, default: bool) -> bool:
    """An option that is on or off. Raises UsageError (DK527)."""
    value = options.get(name)
    if value is None:
        return default
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    found = words.get(str(value).strip().casefold())
    if found is None:
        raise _wrong(f"{name} {value!r} is neither true nor false", f"--option {name}=false")
    return found


def descriptions(options: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    """What `describe.NAME=TEXT` says of inputs and outputs. Raises UsageError (DK527) for a name that there is not."""
    known = list(names)
    found = {
        option.removeprefix(DESCRIBE): str(text) for option, text in options.items() if option.startswith(DESCRIBE)
    }
    for name in found:
        if name not in known:
            raise _wrong(
                f"{DESCRIBE}{name}: the model has no input or output of that name",
                f"its names: {', '.join(known)}",
            )
    return found


def write_metadata(spec: Any, options: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Writes what the user says about the model, and nothing else. texts: by the package's input or output."""
    for option, field in METADATA.items():
        if options.get(option) is not None:
            setattr(spec.description.metadata, field, str(options[option]))
    for item in (*spec.description.input, *spec.description.output):
        if item.name in texts:
            item.shortDescription = texts[item.name]


def metadata_in(spec: Any) -> dict[str, Any]:
    """Author, licence, description and version of a package, and what it says of inputs and outputs; what is set."""
    fields = spec.description.metadata
    found: dict[str, Any] = {option: getattr(fields, field) for option, field in METADATA.items()}
    items = (*spec.description.input, *spec.description.output)
    found["describe"] = {item.name: item.shortDescription for item in items if item.shortDescription}
    return {name: value for name, value in found.items() if value}


def _wrong(why: str, hint: str) -> UsageError:
    return UsageError(why, code="DK527", target="coreml", hint=hint)
