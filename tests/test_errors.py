"""Errors carry facts, and keep class, code and facts across a process border."""

import json

import pytest

from deploykit import errors
from deploykit.errors import DeploykitError, ExitCode, VendorError, error_from_dict

CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, DeploykitError)]


@pytest.mark.parametrize("cls", CLASSES)
def test_round_trip(cls):
    facts = {"file": "m.onnx", "node": "n", "op": "Conv", "tensor": "t", "target": "openvino", "hint": "do"}
    error = cls("what failed", code="DK999", context=["a", "b"], **facts)
    back = error_from_dict(json.loads(json.dumps(error.as_dict())))
    assert type(back) is cls
    assert back.as_dict() == error.as_dict()
    assert back.exit_code == error.exit_code
    assert str(back) == "what failed"


def test_vendor_error_keeps_log_and_command():
    error = VendorError("crash", log=["a", "b"], reproduce="python x", node="n")
    back = error_from_dict(error.as_dict())
    assert isinstance(back, VendorError)
    assert (back.log, back.reproduce, back.node) == (("a", "b"), "python x", "n")


def test_a_subclass_from_elsewhere_arrives_as_its_nearest_known_class():
    class Special(errors.DataError):
        default_code = "DK399"

    back = error_from_dict(Special("odd").as_dict())
    assert type(back) is errors.DataError
    assert back.code == "DK399"


def test_exit_codes():
    expected = {
        "UsageError": 2, "InvalidFileError": 2, "OutputError": 2, "ModelError": 2, "DataError": 2, "ConfigError": 2,
        "UnavailableError": 3, "MissingDependencyError": 3, "GateError": 1, "VendorError": 4,
    }  # fmt: skip
    assert {cls.__name__: int(cls.exit_code) for cls in CLASSES if cls is not DeploykitError} == expected
    assert ExitCode.BUG == 70
    assert ExitCode.INTERRUPTED == 130
