"""The wheels alone, in an empty virtual environment outside the checkout: what a user of the hub gets."""

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from support.commands import ROOT, Venv
from support.stub_server import StubServer
from support.subjects import perfect

PROJECTS = [ROOT, *sorted(path.parent for path in ROOT.glob("environments/*/pyproject.toml"))]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for project in PROJECTS:
        subprocess.run(
            [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, project],
            check=True,
            capture_output=True,
        )
    return folder


@pytest.fixture(scope="module")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Venv:
    folder = tmp_path_factory.mktemp("empty") / "venv"
    venv.create(folder, with_pip=True)
    install = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--find-links", wheels]
    subprocess.run([*install, "ps-primal", "verifiers==0.3.1"], check=True)
    return Venv(folder / "bin")


def test_every_project_builds_a_wheel_and_the_stimuli_are_inside(wheels: Path) -> None:
    assert len(list(wheels.glob("*.whl"))) == len(PROJECTS)
    (mindscope,) = wheels.glob("mindscope-*.whl")
    with zipfile.ZipFile(mindscope) as wheel:
        names = set(wheel.namelist())
        assert wheel.read("mindscope/_data/pal50/pairs.jsonl") == (ROOT / "data/pal50/pairs.jsonl").read_bytes()
    assert "mindscope/py.typed" in names


@pytest.mark.parametrize("spelling", ["ps_primal", "ps-primal"])
def test_vf_eval_finds_the_environment_and_its_defaults(installed: Venv, tmp_path: Path, spelling: str) -> None:
    with StubServer(perfect()) as stub:
        done = installed.run(
            "vf-eval", spelling, "-p", "local", "-b", stub.base_url, "-m", "x", "-s", "-d", "-A",
            "--disable-env-server", "-o", str(tmp_path), cwd=tmp_path,
        )  # fmt: skip
    assert done.code == 0, done
    (results,) = tmp_path.rglob("results.jsonl")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert [row["reward"] for row in rows] == [1.0] * 50  # -n and -r come from [tool.verifiers.eval]


def test_importing_mindscope_loads_neither_torch_nor_verifiers(installed: Venv, tmp_path: Path) -> None:
    code = "import sys, mindscope; print(sorted({'torch', 'verifiers', 'openai', 'pydantic'} & set(sys.modules)))"
    done = installed.run("python", "-c", code, cwd=tmp_path)
    assert done.stdout.strip() == "[]", done
    assert installed.run("python", "-c", "import torch", cwd=tmp_path).code != 0


def test_a_command_that_needs_an_extra_says_which(installed: Venv, tmp_path: Path) -> None:
    done = installed.run("mindscope", "serve", "--port", "0", cwd=tmp_path)
    assert done.code == 2
    assert "mindscope[embedded]" in done.stderr
    done = installed.run("mindscope", "score", "ps_primal", "-m", "embedded", cwd=tmp_path)
    assert done.code == 2
    assert "mindscope[" in done.stderr
