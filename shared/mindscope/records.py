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

from pydantic import BaseModel, ConfigDict

MANIFEST = "mindscope.json"
_RECORDED_LIBRARIES = ("verifiers", "openai", "datasets", "pydantic", "torch", "transformers", "nnsight")


class Manifest(BaseModel):
    """What was run. `comparable_with` says which fields of two runs differ in a way that forbids mixing them."""

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
            "environment", "environment_version", "data_sha256", "api", "model", "base_url", "sampling", "env_args",
            "n", "rollouts",
        )  # fmt: skip
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in fields]
        verifiers = (self.versions.get("verifiers"), other.versions.get("verifiers"))
        pairs.append(("verifiers", *verifiers))
        return [f"{name}: {old!r} -> {new!r}" for name, old, new in pairs if old != new]


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
