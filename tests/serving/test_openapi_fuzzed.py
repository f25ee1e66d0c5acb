"""The server keeps to its own OpenAPI description, whatever a generator of requests makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from deploykit.serving.dataplane import DataPlane  # noqa: E402
from deploykit.serving.http import create_app  # noqa: E402
from deploykit.serving.model import Model  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXT = '<ir_version: 8, opset_import: ["" : 17]> log (float[n,2] x, int64[n] k) => (float[n,2] y) { y = Log(x) }'
CHECKS = (not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance)


@pytest.fixture
def api(model_file: Callable[[str, str], Path]) -> Any:
    model = Model(model_file("fuzzed", TEXT), name="fuzzed")
    model.load()
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(DataPlane([model])))


def test_every_answer_is_one_that_the_description_has(api: Any) -> None:
    operations = [result.ok() for result in api.get_all_operations()]
    assert len(operations) > 10
    for operation in operations:

        @given(case=operation.as_strategy())
        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        def holds(case: Any) -> None:
            case.call_and_validate(checks=CHECKS)

        holds()
