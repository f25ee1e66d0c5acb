import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_generated_documents_are_up_to_date():
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nrun: make docs"


@pytest.mark.parametrize("document", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]), ids=lambda p: p.name)
def test_links_between_documents_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        if "://" not in link:
            assert (document.parent / link).exists(), f"{document.name}: {link}"


def test_the_readme_says_what_the_confusion_matrix_says():
    """What is called supported never fails, and so many of what is called refused would have run."""
    text = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    rows = [
        [int(cell) for cell in row.split("|")]
        for row in re.findall(r"^\| `\w[^|]* \| [\d.]+ \| ([\d |]+) \|$", text, re.M)
    ]
    cases, _, wrong, _, _, refused, ran, _ = map(sum, zip(*rows, strict=True))
    assert (len(rows), wrong) == (4, 0)
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"on {cases // len(rows):,} cases" in readme
    assert f"of those that it refuses {ran} of {refused:,} would have run" in readme


def test_every_key_of_the_configuration_is_described():
    schema = json.loads((ROOT / "docs" / "deploykit.schema.json").read_text(encoding="utf-8"))
    keys = {key for section in (schema, *schema["$defs"].values()) for key in section.get("properties", {})}
    assert len(keys) > 40
    described = set(re.findall(r"\w+", (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")))
    assert keys - described == set()


def test_every_package_that_is_installed_has_its_place_described():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {name: texts for name, texts in project["optional-dependencies"].items() if name not in ("all", "dev")}
    named = {
        re.match(r"[\w-]+", text).group() for texts in (project["dependencies"], *extras.values()) for text in texts
    }
    table = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").partition("\n\n- ")[0]
    assert named - set(re.findall(r"[\w-]+", table)) <= {"tensorflow-cpu"}  # tensorflow, by another name
    assert all(f"`deploykit[{extra}]`" in table for extra in extras)
