"""The command lines that users type, run as they run them: other processes, other virtual environments."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KEY = {"VLLM_API_KEY": "sk-test"}


@dataclass(frozen=True)
class Venv:
    """A virtual environment by its folder of programs."""

    bin: Path

    def run(self, *command: str, cwd: Path, timeout: float = 300, **environment: str) -> "Finished":
        """Run `command`, whose first word is a program of this environment, to its end."""
        program = [str(self.bin / command[0]), *command[1:]]
        done = subprocess.run(
            program,
            cwd=cwd,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def start(self, *command: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
        """Start `command` in a process group of its own and return at once."""
        return subprocess.Popen(
            [str(self.bin / command[0]), *command[1:]],
            cwd=cwd,
            env=self.environment(**environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def environment(self, **extra: str) -> dict[str, str]:
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return {
            **os.environ,
            "PATH": path,
            "VIRTUAL_ENV": str(self.bin.parent),
            "NO_COLOR": "1",
            **KEY,
            **extra,
        }


@dataclass(frozen=True)
class Finished:
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict:
        return json.loads(self.stdout)

    def __str__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.stdout[-4000:]}\n--- stderr\n{self.stderr[-4000:]}"


def verifiers_03() -> Venv:
    """The environment that runs the tests; verifiers 0.3.1 is installed in it."""
    return Venv(Path(sys.executable).parent)


def verifiers_04() -> Venv:
    """The second environment `make test` makes, with verifiers 0.4."""
    return _other("MINDSCOPE_VERIFIERS_04", ".venv-verifiers-0.4", "vf-eval")


def prime() -> Venv:
    """prime 0.7.7, apart from the workspace."""
    return _other("MINDSCOPE_PRIME", ".venv-prime", "prime")


def _other(variable: str, folder: str, program: str) -> Venv:
    bin_folder = Path(os.environ.get(variable, ROOT / folder)) / "bin"
    if not (bin_folder / program).exists():
        pytest.skip(f"no {program} in {bin_folder}; `make test` installs it, or set {variable}")
    return Venv(bin_folder)
