"""What a release is made of agrees with pyproject.toml: tag, recipe, links of notebooks."""

import hashlib
import importlib
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

import nbmem

yaml = pytest.importorskip("yaml", reason="PyYAML comes with transformers")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = PROJECT["urls"]["Repository"]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture
def release(monkeypatch):
    """Load tools/release.py."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    monkeypatch.delitem(sys.modules, "release", raising=False)
    return importlib.import_module("release")


def test_a_tag_is_the_version_and_the_changelog_has_its_date(release):
    assert release.version() == nbmem.__version__
    tag, dated = f"v{nbmem.__version__}", f"## [{nbmem.__version__}] - 2027-01-31\n"
    assert release.tag_problems(tag, dated) == []
    assert len(release.tag_problems("v9.9.9", dated)) == 1
    undated = dated.replace("2027-01-31", "not released yet")
    assert release.tag_problems(tag, undated) == [
        f"CHANGELOG.md has no date behind [{nbmem.__version__}]."
    ]


def test_the_release_workflow_runs_commands_that_are_there():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    lines = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    scripts = re.findall(r"python (\S+\.py)", "\n".join(lines))
    assert {"tools/release.py", "tools/test.py"} <= set(scripts)
    assert all((ROOT / script).exists() for script in scripts)


def test_the_recipe_has_the_packages_and_the_command_of_the_project():
    recipe = yaml.safe_load((ROOT / "tools" / "recipe.yaml").read_text())
    assert recipe["schema_version"] == 1
    assert recipe["context"]["version"] == nbmem.__version__
    assert f">={recipe['context']['python_min']}" == PROJECT["requires-python"]
    python, *run = recipe["requirements"]["run"]
    assert python == "python >=${{ python_min }}"
    assert [line.replace(" ", "") for line in run] == PROJECT["dependencies"]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert set(build) <= {line.replace(" ", "") for line in recipe["requirements"]["host"]}
    torch = PROJECT["optional-dependencies"]["torch"]
    assert recipe["requirements"]["run_constraints"] == [
        line.replace("torch>=", "pytorch >=") for line in torch
    ]
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {where}" for name, where in PROJECT["scripts"].items()
    ]
    about = recipe["about"]
    assert (about["summary"], about["license"]) == (PROJECT["description"], PROJECT["license"])
    homes = (about["homepage"], about["repository"])
    assert homes == (PROJECT["urls"]["Documentation"], REPOSITORY)
    assert recipe["source"]["url"].startswith(f"{REPOSITORY}/releases/download/v$")


def test_the_recipe_gets_the_hash_of_the_built_sdist(release, tmp_path, monkeypatch):
    monkeypatch.setattr(release, "ROOT", tmp_path)
    sdist = tmp_path / "nbmem.tar.gz"
    sdist.write_bytes(b"an sdist")
    source = yaml.safe_load(release.write_recipe(sdist).read_text())["source"]
    assert source["sha256"] == hashlib.sha256(b"an sdist").hexdigest()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_opens_in_colab_and_installs_nbmem_there(path):
    head, *cells = json.loads(path.read_text())["cells"]
    place = REPOSITORY.removeprefix("https://github.com/")
    address = f"https://colab.research.google.com/github/{place}/blob/main/notebooks/{path.name}"
    assert f"[Open in Colab]({address})" in "".join(head["source"])
    first = "".join(next(cell for cell in cells if cell["cell_type"] == "code")["source"])
    assert first.index(f"pip install -q git+{REPOSITORY}\n") < first.index("%load_ext nbmem")
