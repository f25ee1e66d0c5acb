"""What the manifest keeps of an interface: where it differs from the model's, and which sizes the package takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploykit.artifact import TensorSpec
    from deploykit.converters.coreml.shapes import Flexibility


def interface_record(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    names: Mapping[str, str],
    product: Mapping[str, Any],
    flexibility: Flexibility,
) -> dict[str, Any]:
    """{"changed": [{"kind", "model", "artifact"}], "ranges": ..., "shapes": ...}, each only where there is something.

    inputs, outputs, flexibility: by the model's names. names: the package's by the model's. product: its "inputs" and
    "outputs", and in its metrics "images" and "classifier", which stand in place of tensors.
    """
    changed = []
    for kind, specs in (("input", inputs), ("output", outputs)):
        made = {item["name"]: item for item in product[f"{kind}s"]}
        for spec in specs:
            have = made.get(names.get(spec.name, spec.name))
            if have != spec.as_dict():
                changed.append({"kind": kind, "model": spec.as_dict(), "artifact": have})
    record: dict[str, Any] = {
        "changed": changed,
        "ranges": {name: [list(pair) for pair in ranges] for name, ranges in flexibility.ranges.items()},
        "shapes": {name: [list(shape) for shape in shapes] for name, shapes in flexibility.shapes.items()},
        **{key: product["metrics"][key] for key in ("images", "classifier") if key in product["metrics"]},
    }
    return {key: value for key, value in record.items() if value}
