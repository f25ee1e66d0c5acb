import json

import pytest

from deploykit.artifact import Artifact, write_manifest
from deploykit.pipeline.cache import RESULT, Cache
from deploykit.report import Report, warning


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def fill(cache, key="k" * 64, depends=None):
    with cache.filling("convert", key) as folder:
        path = folder / "m.xml"
        path.write_text("<net/>", encoding="utf-8")
        (folder / "m.bin").write_bytes(b"weights")
        made = Artifact.of(path, "openvino", files=("m.xml", "m.bin"), target="openvino", precision="int8")
        write_manifest(made)
        report = Report("convert", [made], [warning("DK999", "beware")], {"parity": {"sqnr_db": float("inf")}})
        return cache.store("convert", key, folder, report, depends or {})


def test_what_was_stored_is_found(cache):
    stored = fill(cache)
    found = cache.find("convert", "k" * 64)
    assert found is not None
    assert found.report.artifact == stored.report.artifact
    assert found.report.artifact.path.read_text() == "<net/>"
    assert [f.message for f in found.report.findings] == ["beware"]
    assert set(found.facts["files"]) == {"m.xml", "m.bin", "m.xml.deploykit.json"}


def test_another_key_is_not_found(cache):
    fill(cache)
    assert cache.find("convert", "x" * 64) is None


@pytest.mark.parametrize("damage", ["change", "remove", "result", "truncate"])
def test_a_damaged_entry_is_made_again(cache, damage):
    folder = fill(cache).folder
    if damage == "change":
        (folder / "m.bin").write_bytes(b"other")
    elif damage == "remove":
        (folder / "m.bin").unlink()
    elif damage == "result":
        (folder / RESULT).write_text("{}", encoding="utf-8")
    else:
        (folder / RESULT).write_text((folder / RESULT).read_text()[:100], encoding="utf-8")
    assert cache.find("convert", "k" * 64) is None
    fill(cache)
    assert cache.find("convert", "k" * 64) is not None


def test_a_change_in_a_file_that_the_step_read_redoes_it(cache, tmp_path):
    from deploykit.io import file_sha256

    module = tmp_path / "layers.py"
    module.write_text("A = 1", encoding="utf-8")
    fill(cache, depends={str(module): file_sha256(module)})
    assert cache.find("convert", "k" * 64) is not None
    module.write_text("A = 2", encoding="utf-8")
    assert cache.find("convert", "k" * 64) is None


def test_an_interrupted_step_leaves_nothing(cache):
    def interrupted():
        with cache.filling("convert", "k" * 64) as folder:
            (folder / "m.xml").write_text("half", encoding="utf-8")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list((cache.root / "convert").iterdir()) == []


def test_without_reading_everything_is_redone(cache):
    fill(cache)
    assert Cache(cache.root, read=False).find("convert", "k" * 64) is None


def test_the_key_depends_on_every_fact_and_not_on_their_order():
    assert Cache.key({"a": 1, "b": [2]}) == Cache.key({"b": [2], "a": 1})
    assert Cache.key({"a": 1}) != Cache.key({"a": 2})


def test_the_stored_result_is_strict_json(cache):
    folder = fill(cache).folder
    json.loads((folder / RESULT).read_text(), parse_constant=lambda name: pytest.fail(name))
