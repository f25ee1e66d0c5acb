"""Toolchains that no package index has, as data: deploykit checks and prepares the model and writes their command.

`deploykit.converters.bundles:NAME` is the target that `data/NAME.toml` describes.
"""

from __future__ import annotations

from deploykit.target import Target
from deploykit.toolchain import Description, Option, is_described, load


def __getattr__(name: str) -> Target:
    """The target of a description, named with `_` for `-`."""
    known = name.replace("_", "-")
    if not is_described(known):  # modules of this package among them
        raise AttributeError(name)
    return target_of(load(known))


def target_of(found: Description) -> Target:
    """A `Target` that writes bundles: it converts nothing here and runs nothing here."""
    return Target(
        name=found.name,
        title=found.title,
        suffix="",
        format=f"{found.name}-bundle",
        extra=None,
        packages=(),
        distributions=(),
        precisions=found.precisions,
        options={name: _help(option) for name, option in found.options.items()},
        support=f"deploykit.converters.bundles.support:{found.name}",
        inspect="deploykit.converters.bundles.inspect:describe",
        bundle="deploykit.converters.bundles.convert:bundle_job",
        worker="bundles",
        tables={"": found.table} if found.table else {},
        takes=("calib",) if found.calibration is not None else (),
        elsewhere=f"deploykit convert MODEL --to {found.name} -o FOLDER writes a build bundle for {found.tool}",
        prepares=_needs(found),
    )


def _help(option: Option) -> str:
    values = f": {', '.join(option.choices)}" if option.choices else ""
    told = " (has to be given)" if option.required else f" (default: {option.default})" if option.default else ""
    return f"{option.help}{values}{told}"


def _needs(found: Description) -> dict[str, object]:
    needs = found.needs
    return {"opset": needs.opset, "static": needs.static, "model": found.model}
