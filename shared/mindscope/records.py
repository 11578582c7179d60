"""What a run records about itself, and files that are either whole or absent.

A run folder holds `mindscope.json`: a `Manifest` with everything needed to say whether two runs are comparable. It
names the variable that holds the key, never the key.
"""

import os
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

MANIFEST = "mindscope.json"
_RECORDED_LIBRARIES = ("verifiers", "openai", "datasets", "pydantic", "torch", "transformers", "nnsight")


class Manifest(BaseModel):
    """What was run. `differences` says what forbids mixing the rollouts of two runs."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    environment: str
    environment_version: str
    mindscope_version: str
    data_sha256: dict[str, str]
    api: str
    model: str
    base_url: str
    api_key_var: str
    sampling: dict[str, Any]
    env_args: dict[str, Any]
    n: int | None
    rollouts: int
    versions: dict[str, str]
    started: str

    def differences(self, other: "Manifest") -> list[str]:
        """Fields in which two runs differ so that their rollouts must not be mixed, as `field: old -> new`."""
        fields = (
            "environment", "environment_version", "mindscope_version", "data_sha256", "api", "model", "sampling",
            "env_args", "n", "rollouts",
        )  # fmt: skip
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in fields]
        pairs.append(("base_url", _endpoint_identity(self.base_url), _endpoint_identity(other.base_url)))
        pairs.append(("verifiers", self.versions.get("verifiers"), other.versions.get("verifiers")))
        return [f"{name}: {old!r} -> {new!r}" for name, old, new in pairs if old != new]


def _endpoint_identity(base_url: str) -> str:
    """The address without its port where it is this machine's: a server started again may get another."""
    parts = urlsplit(base_url)
    return "this machine" if parts.hostname in {"127.0.0.1", "localhost", "::1"} else base_url


def installed_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that can change a result, where they are installed."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in _RECORDED_LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def write_whole(path: Path, text: str) -> None:
    """Write `text` so that a reader, or a crash at any moment, sees the old file or the new one and nothing between.

    Raises OSError when the folder cannot be written; the file that was there stays as it was.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
