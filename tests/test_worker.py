"""The child side of isolation, as a script of any interpreter."""

import json
import subprocess
import sys
from pathlib import Path

import deploykit.worker

SCRIPT = Path(deploykit.worker.__file__)


def talk(*requests, interpreter=(sys.executable,), cwd=None):
    """The answers to requests, one at a time, and what stands in the log afterwards."""
    with subprocess.Popen(
        [*interpreter, SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    ) as process:
        answers = []
        for request in requests:
            process.stdin.write(json.dumps({"arguments": {}, **request}) + "\n")
            process.stdin.flush()
            answers.append(json.loads(process.stdout.readline() or '"it ended"'))
        rest, log = process.communicate(timeout=60)
        assert (rest, process.returncode) == ("", 0), log
    return answers, log


def test_requests_are_answered_in_turn_and_then_it_ends():
    answers, log = talk(
        {"function": "posixpath:basename", "arguments": {"p": "a/b"}},
        {"function": "json:loads", "arguments": {"s": "{"}},
        {"function": "posixpath:dirname", "arguments": {"p": "a/b"}},
    )
    assert answers[0] == {"result": "b"}
    assert answers[1]["exception"]["type"] == "JSONDecodeError"
    assert answers[1]["exception"]["ours"] is False
    assert answers[2] == {"result": "a"}
    assert "JSONDecodeError" in log


def test_it_runs_without_site_packages_and_adopts_our_package():
    """Another environment's interpreter has no deploykit, and must not see our neighbours."""
    bare = (sys.executable, "-I", "-S")
    answers, log = talk(
        {"function": "deploykit.io:size_of", "arguments": {"path": 1}},
        {"function": "importlib.util:find_spec", "arguments": {"name": "numpy"}},
        interpreter=bare,
    )
    assert answers[0]["exception"]["type"] == "AttributeError", log
    assert answers[0]["exception"]["ours"] is True
    assert answers[1] == {"result": None}


def test_its_folder_shadows_no_standard_module():
    answers, _ = talk({"function": "io:text_encoding", "arguments": {"encoding": "ascii"}}, cwd=SCRIPT.parent)
    # The standard library's function takes no keywords; our io has no such function.
    assert answers[0]["exception"]["message"] == "io.text_encoding() takes no keyword arguments"


def test_only_the_standard_library_is_imported_at_first():
    code = (
        "import runpy, sys; before = set(sys.modules); runpy.run_path(sys.argv[1], run_name='probe'); "
        "print([m for m in set(sys.modules) - before if m.partition('.')[0] not in sys.stdlib_module_names])"
    )
    done = subprocess.run([sys.executable, "-c", code, SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_replay_prints_the_answer_and_says_whether_it_worked(tmp_path):
    for arguments, code in (({"p": "a/b"}, 0), ({}, 1)):
        file = tmp_path / "request.json"
        request = {"function": "os.path:basename", "arguments": arguments, "environment": {"A": "b"}}
        file.write_text(json.dumps(request))
        done = subprocess.run([sys.executable, SCRIPT, file], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert ("result" in json.loads(done.stdout)) == (code == 0)
