"""The folder of a run: what is refused, one run at a time, and nothing left where nothing was made."""

import subprocess
import sys

import pytest

from deploykit.errors import OutputError
from deploykit.pipeline.output_folder import check_folder, held

HOLD = (
    "import sys, pathlib; from deploykit.pipeline.output_folder import held\n"
    "with held(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
)


def refusal(path, **options):
    with pytest.raises(OutputError) as caught:
        check_folder(path, force=False, **options)
    return caught.value


def test_a_new_an_empty_and_an_own_folder_are_taken(tmp_path):
    check_folder(tmp_path / "new" / "deep", force=False)
    check_folder(tmp_path, force=False)
    (tmp_path / "report.json").touch()
    check_folder(tmp_path, force=False)


def test_what_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    assert "is a file" in refusal(tmp_path / "file").message
    assert "is a link to nothing" in refusal(tmp_path / "link").message
    assert refusal(tmp_path / "file" / "out").code == "DK121"
    assert refusal(tmp_path / "link" / "out").code == "DK121"


def test_strangers_are_not_written_between(tmp_path):
    (tmp_path / "thesis.tex").touch()
    assert refusal(tmp_path).code == "DK120"
    check_folder(tmp_path, force=True)


def test_nothing_made_leaves_nothing(tmp_path):
    with held(tmp_path / "a" / "out"):
        (tmp_path / "a" / "out" / ".cache" / "export").mkdir()
    assert not list(tmp_path.iterdir())


def test_what_was_there_or_was_made_stays(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with held(out):
        pass
    assert out.is_dir()
    with held(out):
        (out / ".cache" / "export").mkdir()
        (out / ".cache" / "export" / "entry").touch()
    assert (out / ".cache" / "export" / "entry").is_file()


def test_a_second_run_is_refused_and_a_killed_one_holds_nothing(tmp_path):
    out = tmp_path / "out"
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "held\n"
    with pytest.raises(OutputError, match="another run is writing") as caught, held(out):
        pass
    assert caught.value.code == "DK127"
    (out / ".cache" / "export" / ".half.tmp").mkdir(parents=True)
    other.kill()
    other.communicate()
    with held(out):
        assert not (out / ".cache" / "export" / ".half.tmp").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # made by the killed run, not by this one
