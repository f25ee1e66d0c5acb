from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deploykit.errors import InvalidFileError, OutputError, UsageError
from deploykit.serving import repository

if TYPE_CHECKING:
    from pathlib import Path


def lay(root: Path, *files: str) -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x", encoding="utf-8")
    return root


def test_the_newest_version_of_the_only_model(tmp_path: Path) -> None:
    lay(tmp_path, "a/2/model.onnx", "a/10/model.onnx", "a.deploykit.json", ".git/x")
    (found,) = repository.entries_of(tmp_path)
    assert (found.path, found.name, found.version) == (tmp_path / "a/10/model.onnx", "a", "10")
    assert [entry.version for entry in repository.entries_of(tmp_path, every=True)] == ["2", "10"]


def test_the_model_folder_itself(tmp_path: Path) -> None:
    lay(tmp_path, "a/1/model.xml", "a/draft/model.onnx", "a/007/model.onnx", "b/1/model.onnx")
    (found,) = repository.entries_of(tmp_path / "a")
    assert (found.path, found.name, found.version) == (tmp_path / "a/1/model.xml", "a", "1")


def test_several_models_in_the_versions_that_their_configurations_choose(tmp_path: Path) -> None:
    lay(tmp_path, *(f"{name}/{version}/model.onnx" for name in "abcd" for version in (1, 2, 3)))
    policies = {"a": "all { }", "b": "specific { versions: [1, 3, 9] }", "c": "latest { num_versions: 2 }"}
    for name, policy in policies.items():
        (tmp_path / name / "config.pbtxt").write_text(f"version_policy: {{ {policy} }}")
    made = [(entry.name, entry.version) for entry in repository.entries_of(tmp_path)]
    assert made == [("a", "1"), ("a", "2"), ("a", "3"), ("b", "1"), ("b", "3"), ("c", "2"), ("c", "3"), ("d", "3")]


def test_an_entry_differs_once_a_file_of_it_does(tmp_path: Path) -> None:
    lay(tmp_path, "a/1/model.onnx", "a/1/model.onnx.data", "a/2/model.onnx")
    before = repository.entries_of(tmp_path, every=True)
    (tmp_path / "a/1/model.onnx.data").write_text("longer")
    after = repository.entries_of(tmp_path, every=True)
    assert (before[0] == after[0], before[1] == after[1]) == (False, True)


def test_a_folder_without_models(tmp_path: Path) -> None:
    lay(tmp_path, "a/notes.txt", "b/1/other.onnx")
    with pytest.raises(InvalidFileError) as caught:
        repository.entries_of(tmp_path)
    assert caught.value.code == "DK706"


@pytest.mark.parametrize("name", ["", "a/b", "a\\b", "..", ".a", "a\nb", "x" * 201])
def test_names_that_cannot_stand_in_an_address(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        repository.check_name(name)
    assert caught.value.code == "DK703"


def test_a_repository_takes_one_more_model(tmp_path: Path) -> None:
    lay(tmp_path, "a/1/model.onnx", "a.deploykit.json")
    assert repository.destination(tmp_path, "b", 1, force=False) == tmp_path / "b"
    assert repository.destination(tmp_path / "new", "b", 1, force=False) == tmp_path / "new/b"
    assert not (tmp_path / "new").exists()


def test_an_existing_model_needs_force(tmp_path: Path) -> None:
    lay(tmp_path, "a/1/model.onnx")
    with pytest.raises(OutputError) as caught:
        repository.destination(tmp_path, "a", 1, force=False)
    assert caught.value.code == "DK120"
    assert repository.destination(tmp_path, "a", 1, force=True) == tmp_path / "a"


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("stranger", ["photos/1.jpg", "notes.txt", "a/2/model.onnx"])
def test_other_files_and_versions_are_never_replaced(tmp_path: Path, stranger: str, force: bool) -> None:
    lay(tmp_path, "a/1/model.onnx", stranger)
    with pytest.raises(OutputError) as caught:
        repository.destination(tmp_path, "a", 1, force=force)
    assert caught.value.code == "DK708"


def test_a_file_is_no_output_folder(tmp_path: Path) -> None:
    lay(tmp_path, "out")
    with pytest.raises(OutputError):
        repository.destination(tmp_path / "out", "a", 1, force=True)
