"""The page at `/`: the models that are served, with a field for each input."""

from __future__ import annotations

import functools
import json
import secrets
from importlib import resources
from typing import TYPE_CHECKING, Any

from deploykit.serving.checks import describe
from deploykit.serving.datatypes import DATATYPES
from deploykit.serving.openapi import example_values

if TYPE_CHECKING:
    from deploykit.serving.dataplane import DataPlane
    from deploykit.serving.model import Model


def page(plane: DataPlane) -> tuple[str, str]:
    """The HTML, and the Content-Security-Policy: it runs its own script and talks to this server, nothing else."""
    nonce = secrets.token_urlsafe(16)
    models = [_facts(model) for model in plane.models if model.loaded]
    text: str = _template().render(title="deploykit serve", models=models, nonce=nonce)
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )
    return text, policy


@functools.cache
def _template() -> Any:
    from jinja2 import Environment

    text = resources.files("deploykit.serving").joinpath("try_page.html.j2").read_text(encoding="utf-8")
    return Environment(autoescape=True, trim_blocks=True).from_string(text)


def _facts(model: Model) -> dict[str, Any]:
    inputs = [
        {
            "name": spec.name,
            "datatype": DATATYPES[spec.dtype],
            "kind": describe(spec),
            "image": model.takes_images(spec.name),
            "example": json.dumps(example_values(spec)),
        }
        for spec in model.inputs
    ]
    return {"name": model.name, "version": model.version, "engine": model.engine, "inputs": inputs}
