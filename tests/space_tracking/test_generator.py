"""The frozen files are what the generator makes, whatever the process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from mindscope.stimuli import data_path

FOLDER = data_path("space_tracking")


def run(script: Path, *arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.run(
        [sys.executable, str(script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_same_bytes_in_this_process_as_in_the_files(generator):
    made = generator.files()
    assert set(made) == {"train.jsonl", "dev.jsonl", "test.jsonl", "distinct.jsonl", "SHA256SUMS"}
    for name, content in made.items():
        assert content == (FOLDER / name).read_bytes(), name
    assert generator.files() == made


def test_the_same_bytes_from_other_processes_and_hash_seeds(tmp_path):
    for hash_seed in ("1", "31337"):
        copy = tmp_path / hash_seed
        copy.mkdir()
        shutil.copy(FOLDER / "generate.py", copy)
        assert run(copy / "generate.py", hash_seed=hash_seed).returncode == 0
        for name in ("train.jsonl", "dev.jsonl", "test.jsonl", "distinct.jsonl", "SHA256SUMS"):
            assert (copy / name).read_bytes() == (FOLDER / name).read_bytes(), name


def test_check_tells_fresh_files_from_stale_ones(tmp_path):
    copy = tmp_path / "space_tracking"
    shutil.copytree(FOLDER, copy)
    assert run(copy / "generate.py", "--check").returncode == 0
    with open(copy / "dev.jsonl", "a") as file:
        file.write("\n")
    (copy / "test.jsonl").unlink()
    result = run(copy / "generate.py", "--check")
    assert result.returncode == 1
    assert "dev.jsonl, test.jsonl" in result.stdout
    assert "train.jsonl" not in result.stdout
    assert (copy / "dev.jsonl").read_text().endswith("\n\n")


def test_an_unknown_argument_writes_nothing(tmp_path):
    shutil.copy(FOLDER / "generate.py", tmp_path)
    assert run(tmp_path / "generate.py", "--chekc").returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["generate.py"]
