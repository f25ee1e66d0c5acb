import json

import pytest

from deploykit.converters.tvm import trailer
from deploykit.converters.tvm.inspect import describe
from deploykit.errors import InvalidFileError

WHOLE = {"inputs": [], "outputs": [], "precision": "fp32", "built_for": {}, "functions": {}, "version": "1"}


def library(path, text):
    path.write_bytes(b"\x7fELF" + bytes(96) + text + len(text).to_bytes(8, "little") + b"deploykit.tvm/1\n")
    return path


def test_facts_that_fit_are_read(tmp_path):
    assert describe(library(tmp_path / "m.so", json.dumps(WHOLE).encode()))["producer"] == "Apache TVM 1"


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200_000 + b"]" * 200_000,
        b"[]",
        *(
            json.dumps({**WHOLE, **odd}).encode()
            for odd in (
                {"inputs": 3},
                {"outputs": [1]},
                {"precision": []},
                {"built_for": 4},
                {"functions": {"f": "g"}},
                {"version": 5},
            )
        ),
    ],
    ids=["deep", "list", "inputs", "outputs", "precision", "built_for", "functions", "version"],
)
def test_facts_that_do_not_fit_are_a_damaged_file(tmp_path, text):
    with pytest.raises(InvalidFileError, match=r"m\.so is damaged: what it says") as caught:
        describe(library(tmp_path / "m.so", text))
    assert caught.value.code == "DK528"


def test_a_library_that_is_cut_off_is_refused(tmp_path):
    header = bytearray(b"\x7fELF\x02\x01" + bytes(58))
    header[40:48], header[58:60], header[60:62] = (100).to_bytes(8, "little"), b"\x40\x00", b"\x02\x00"
    file = tmp_path / "m.so"
    file.write_bytes(header + bytes(100 + 2 * 64 - 64))
    assert trailer.kind_of(file) == "ELF"
    for size in (100 + 2 * 64 - 1, 30):
        file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(InvalidFileError, match="cut off"):
            trailer.kind_of(file)
