"""Sample files: what is none is one clear error, whichever source it is for."""

import numpy as np
import pytest

from deploykit.errors import DataError
from deploykit.exporters.sample_file import read_arrays


def test_arrays_come_by_name(tmp_path):
    np.savez(tmp_path / "s.npz", a=np.arange(3), b=np.array(["x"]))
    assert {name: array.tolist() for name, array in read_arrays(tmp_path / "s.npz").items()} == {
        "a": [0, 1, 2],
        "b": ["x"],
    }


@pytest.mark.parametrize("damage", ["cut", "no zip", "member", "pickle", "npy", "empty", "text"])
def test_what_cannot_be_read_is_a_data_error(tmp_path, damage):
    path = tmp_path / "s.npz"
    np.savez_compressed(path, x=np.arange(5000))
    data = bytearray(path.read_bytes())
    data[200:240] = b"\xff" * 40
    made = {
        "cut": bytes(data[:300]),
        "no zip": b"PK\x03\x04bad",
        "member": bytes(data),
        "empty": b"",
        "text": b"x,y",
    }
    if damage in made:
        path.write_bytes(made[damage])
    elif damage == "pickle":
        np.savez(path, x=np.array([{}], object))
    else:
        with path.open("wb") as stream:
            np.save(stream, np.ones(3))
    with pytest.raises(DataError) as refused:
        read_arrays(path, "X=X")
    assert refused.value.code == "DK622"
    assert "np.savez('sample.npz', X=X)" in refused.value.hint
