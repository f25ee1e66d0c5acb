"""Outputs appear whole or not at all, and nothing that was there is lost."""

import errno
import hashlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploykit import io
from deploykit.errors import DeploykitError, InvalidFileError, ModelError, OutputError, VendorError


def tree(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


def write(final, *companions, force, then=lambda: None):
    """Publishes `final` with companions beside it; `then` runs before the publication."""
    with io.staged(final, force=force) as staging:
        for name in (final.name, *companions):
            staging.with_name(name).write_text(f"new {name}")
        then()


def test_digest_is_what_sha256sum_prints(tmp_path):
    file = tmp_path / "a b.bin"
    file.write_bytes(b"abc")
    assert io.digest([file]) == hashlib.sha256(b"abc").hexdigest()
    printed = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True).stdout
    assert printed.startswith(io.file_sha256(file))


def test_digest_of_folders_and_sets_depends_on_names_and_content_only(tmp_path):
    digests = []
    for where in ("one", "two"):
        folder = tmp_path / where / "m.mlpackage"
        (folder / "Data").mkdir(parents=True)
        for name in ("Manifest.json", "Data/w.bin") if where == "one" else ("Data/w.bin", "Manifest.json"):
            (folder / name).write_text(name)
        digests.append(io.digest([folder]))
    assert digests[0] == digests[1]
    (tmp_path / "two" / "m.mlpackage" / "Data" / "w.bin").rename(tmp_path / "two" / "m.mlpackage" / "Data" / "v.bin")
    assert io.digest([tmp_path / "two" / "m.mlpackage"]) != digests[0]
    assert io.size_of(tmp_path / "one" / "m.mlpackage") == len("Manifest.jsonData/w.bin")


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda p: None, "DK101"),
        (lambda p: p.mkdir(), "DK102"),
        (os.mkfifo, "DK103"),
        (lambda p: p.symlink_to("/dev/zero"), "DK103"),
        (lambda p: p.symlink_to("nowhere"), "DK101"),
        (lambda p: p.write_bytes(b""), "DK104"),
    ],
)
def test_existing_file_refuses(tmp_path, make, code):
    path = tmp_path / "größe und 模型.onnx"
    make(path)
    with pytest.raises(InvalidFileError) as caught:
        io.existing_file(path, "model")
    assert caught.value.code == code
    assert str(path) in caught.value.message


def test_a_name_longer_than_names_can_be(tmp_path):
    with pytest.raises(InvalidFileError, match="too long"):
        io.existing_file(tmp_path / ("x" * 300))
    with pytest.raises(OutputError) as caught:
        io.check_output(tmp_path / ("x" * 250), force=True)
    assert caught.value.code == "DK126"
    with pytest.raises(OutputError):
        io.check_output(tmp_path / ("模" * 85), force=True)


@pytest.mark.parametrize("name", ["x" * 234 + ".onnx", "模" * 70 + ".onnx", "dir with space/модель.onnx"])
def test_long_and_foreign_names_are_written(tmp_path, name):
    final = tmp_path / name
    final.parent.mkdir(exist_ok=True)
    for text in ("one", "two"):
        with io.staged(final, force=True) as staging:
            staging.write_text(text)
            staging.with_name(staging.name + ".deploykit.json").write_text("{}")
    assert final.read_text() == "two"
    assert len(list(final.parent.iterdir())) == 2


def test_check_output_says_what_is_wrong_before_any_work(tmp_path):
    (tmp_path / "there").write_text("old")
    (tmp_path / "dangling").symlink_to("nowhere")
    cases = [
        (tmp_path / "there", {}, "DK120"),
        (tmp_path / "dangling", {}, "DK120"),
        (tmp_path / "no" / "m.onnx", {}, "DK121"),
        (tmp_path / "there" / "m.onnx", {}, "DK121"),
        (tmp_path / "m.bin", {"suffix": ".onnx"}, "DK123"),
    ]
    for path, more, code in cases:
        with pytest.raises(OutputError) as caught:
            io.check_output(path, force=False, **more)
        assert caught.value.code == code
        assert caught.value.hint
    assert io.check_output(tmp_path / "there", force=True) == tmp_path / "there"


def test_a_folder_that_takes_no_files():
    # /proc refuses new files to everybody, root included, as a read-only mount does.
    if not Path("/proc/self").is_dir():
        pytest.skip("no /proc here")
    with pytest.raises(OutputError) as caught:
        io.check_output(Path("/proc/self/m.onnx"), force=False)
    assert caught.value.code in ("DK122", "DK121")
    assert "/proc/self" in caught.value.message


def test_a_read_only_folder(tmp_path):
    if os.geteuid() == 0:
        # Root ignores permissions, so the probe runs as somebody else.
        code = (
            "import os, sys\nfrom pathlib import Path\nfrom deploykit import io\n"
            "from deploykit.errors import OutputError\n"
            "os.setuid(65534)\n"
            "try: io.check_output(Path(sys.argv[1]) / 'm.onnx', force=False)\n"
            "except OutputError as problem: print(problem.code, problem.message)\n"
        )
        tmp_path.chmod(0o555)
        for parent in tmp_path.parents[:2]:
            parent.chmod(0o755)
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
        if "PermissionError" in done.stderr:
            pytest.skip(f"the other user cannot reach the test folder: {done.stderr.splitlines()[-1]}")
        assert "DK122" in done.stdout or "DK121" in done.stdout, done.stderr
    else:
        tmp_path.chmod(0o555)
        with pytest.raises(OutputError) as caught:
            io.check_output(tmp_path / "m.onnx", force=False)
        assert caught.value.code == "DK122"


def test_several_files_move_together(tmp_path):
    final = tmp_path / "m.xml"
    with io.staged(final, force=False) as staging:
        assert staging.name == final.name
        staging.write_text("xml")
        staging.with_name("m.bin").write_text("bin")
        (staging.parent / "extra").mkdir()
        (staging.parent / "extra" / "f").write_text("f")
        assert sorted(p.name for p in tmp_path.iterdir()) == [staging.parent.name]
    assert tree(tmp_path) == {"m.xml": b"xml", "m.bin": b"bin", "extra": None, "extra/f": b"f"}


def test_a_folder_artifact_is_replaced_whole(tmp_path):
    final = tmp_path / "m.mlpackage"
    final.mkdir()
    (final / "stale").write_text("old")
    with io.staged(final, force=True) as staging:
        staging.mkdir()
        (staging / "new").write_text("new")
    assert tree(tmp_path) == {"m.mlpackage": None, "m.mlpackage/new": b"new"}


def test_without_force_no_stranger_is_replaced(tmp_path):
    (tmp_path / "m.bin").write_text("a stranger")
    with pytest.raises(OutputError, match=r"m\.bin"):
        write(tmp_path / "m.xml", "m.bin", force=False)
    assert tree(tmp_path) == {"m.bin": b"a stranger"}


def test_without_force_an_output_that_appeared_meanwhile_is_kept(tmp_path):
    final = tmp_path / "m.onnx"
    with pytest.raises(OutputError) as caught:
        write(final, force=False, then=lambda: final.write_text("theirs"))
    assert caught.value.code == "DK120"
    assert tree(tmp_path) == {"m.onnx": b"theirs"}


def test_a_manifest_left_alone_does_not_stand_in_the_way(tmp_path):
    (tmp_path / "m.onnx.deploykit.json").write_text("stale")
    with io.staged(tmp_path / "m.onnx", force=False) as staging:
        staging.write_text("new")
        staging.with_name("m.onnx.deploykit.json").write_text("fresh")
    assert tree(tmp_path) == {"m.onnx": b"new", "m.onnx.deploykit.json": b"fresh"}


@pytest.mark.parametrize("problem", [KeyboardInterrupt, RuntimeError, SystemExit, OSError(errno.EIO, "broken disk")])
@pytest.mark.parametrize("old", [True, False])
def test_an_interrupted_run_leaves_the_old_files_or_none(tmp_path, problem, old):
    final = tmp_path / "m.xml"
    if old:
        final.write_text("old xml")
        (tmp_path / "m.bin").write_text("old bin")
    before = tree(tmp_path)

    def fail():
        raise problem

    with pytest.raises(problem if isinstance(problem, type) else OSError):
        write(final, "m.bin", force=True, then=fail)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG, errno.EDQUOT])
def test_a_full_disk_names_the_output(tmp_path, number):
    final = tmp_path / "m.onnx"
    with pytest.raises(OutputError) as caught, io.staged(final, force=False):
        raise OSError(number, os.strerror(number))
    assert caught.value.code == "DK125"
    assert str(final) in caught.value.message
    assert tree(tmp_path) == {}


def test_a_real_file_size_limit(tmp_path):
    final = tmp_path / "m.onnx"
    final.write_text("old")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            with io.staged(final, force=True) as staging:
                staging.write_bytes(bytes(5000))
        except OutputError as problem:
            code = 0 if problem.code == "DK125" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tree(tmp_path) == {"m.onnx": b"old"}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError(errno.EIO, "broken disk")])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("failing", range(6))
def test_whatever_was_replaced_comes_back(tmp_path, monkeypatch, failing, after, kind):
    """An interrupt before or after any of the renames of a publication leaves all old files in place."""
    final = tmp_path / "m.xml"
    for name in ("m.xml", "m.bin", "a.txt"):
        (tmp_path / name).write_text(f"old {name}")
    before = tree(tmp_path)
    original, count = Path.rename, iter(range(100))

    def rename(self, target):
        if next(count) != failing:
            return original(self, target)
        if after:
            original(self, target)
        raise kind

    with pytest.raises(kind if isinstance(kind, type) else OSError):
        write(final, "m.bin", "a.txt", force=True, then=lambda: monkeypatch.setattr(Path, "rename", rename))
    monkeypatch.undo()
    assert tree(tmp_path) == before


def test_nothing_written_is_an_error(tmp_path):
    with pytest.raises(OutputError) as caught, io.staged(tmp_path / "m.onnx", force=False) as staging:
        staging.with_name("other").write_text("x")
    assert caught.value.code == "DK124"
    assert tree(tmp_path) == {}


def test_write_text(tmp_path):
    io.write_text(tmp_path / "r.json", "ü", force=False)
    with pytest.raises(OutputError):
        io.write_text(tmp_path / "r.json", "x", force=False)
    assert (tmp_path / "r.json").read_text(encoding="utf-8") == "ü"


def test_a_circle_of_links_is_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    try:
        found = io.inside(tmp_path, "a", "data")
    except ModelError as problem:
        assert problem.code == "DK113"  # noqa: PT017 - Python before 3.13 notices here, later ones when it is opened
    else:
        assert not found.is_file()


def test_disk_full_when_probing_the_folder(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(io.tempfile, "TemporaryFile", full)
    with pytest.raises(OutputError) as caught:
        io.check_output(tmp_path / "m.onnx", force=False)
    assert caught.value.code == "DK125"


def test_an_output_below_a_file_is_told_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="which is a file and not a folder"):
        io.check_output(tmp_path / "file" / "m.onnx", force=False)


def test_a_full_disk_in_a_worker_names_the_output(tmp_path):
    with (
        pytest.raises(OutputError, match=r"no space left for .*m\.onnx") as caught,
        io.staged(tmp_path / "m.onnx", force=False),
    ):
        raise io.disk_full("the output")
    assert caught.value.file == str(tmp_path / "m.onnx")


def test_force_does_not_put_a_file_in_the_place_of_a_folder(tmp_path):
    (tmp_path / "m.xml").mkdir()
    (tmp_path / "m.xml" / "thesis").write_text("years of work")
    with (
        pytest.raises(OutputError, match="a folder is in the place"),
        io.staged(tmp_path / "m.xml", force=True) as path,
    ):
        path.write_text("new")
    assert (tmp_path / "m.xml" / "thesis").read_text() == "years of work"


def test_a_folder_whose_copy_does_not_fit_is_a_full_disk(tmp_path):
    """copytree collects the errors of its files in one that has no errno."""
    (tmp_path / "package" / "inner").mkdir(parents=True)
    (tmp_path / "package" / "inner" / "weight.bin").write_bytes(bytes(20_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OutputError, match="no space left for") as caught, io.no_space_named(tmp_path / "copy"):
            io.copy_entry(tmp_path / "package", tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.code == "DK125"
    with pytest.raises(shutil.Error), io.no_space_named(tmp_path / "copy"):
        raise shutil.Error([("a", "b", "[Errno 13] Permission denied: 'a'")])


@pytest.mark.parametrize(
    ("log", "free", "inside", "code"),
    [
        (["ld: final link failed: No space left on device"], 1 << 40, False, "DK125"),
        (["ld: cannot find -lm"], 0, False, "DK510"),
        (None, 0, True, "DK125"),
        (None, 1 << 40, True, "DK528"),
        (None, 0, False, "DK528"),
    ],
)
def test_a_vendor_that_met_a_full_disk(tmp_path, monkeypatch, log, free, inside, code):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(io.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 41, 0, free))

    def fail(staging):
        if log is not None:
            raise VendorError("linking failed", log=log)
        raise InvalidFileError("cut off", code="DK528", file=(staging if inside else Path("in.so")).absolute())

    with pytest.raises(DeploykitError) as caught, io.staged(Path("m.so"), force=False) as staging:
        fail(staging)
    assert caught.value.code == code
    assert not list(tmp_path.iterdir())
