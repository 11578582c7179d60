"""verifiers' own evaluation runners, called with one `Manifest` in place of their two command lines."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from mindscope.errors import MindscopeError
from mindscope.records import Manifest, write_whole


class Launch(NamedTuple):
    """How a run is carried out; nothing here changes its result."""

    folder: Path
    concurrency: int
    resume: bool
    push: bool
    dashboard: bool


Runner = Callable[[Manifest, Launch], None]
"""Runs to the end. Writes nothing on stdout but the dashboard."""


def runner(api: str) -> Runner:
    """The runner for `api`, which is `v1` or `legacy`.

    Raises MindscopeError when verifiers is not installed, or its version has no such runner.
    """
    try:
        installed = version("verifiers")
    except PackageNotFoundError:
        raise MindscopeError("verifiers is not installed; `pip install 'verifiers>=0.3.1,<0.5'`") from None
    if api == "v1":
        return _run_v1
    if api != "legacy":
        raise MindscopeError(f"--api is {api!r}; it is v1 or legacy")
    if not installed.startswith("0.3."):
        raise MindscopeError(f"--api legacy needs verifiers 0.3, and {installed} is installed; use --api v1")
    return _run_legacy


def _run_v1(manifest: Manifest, launch: Launch) -> None:
    from verifiers.v1.cli.eval.main import main

    place: dict[str, Any] = {
        "client": {"base_url": manifest.base_url, "api_key_var": manifest.api_key_var},
        "max_concurrent": launch.concurrency,
        "rich": {} if launch.dashboard else None,
        "output_dir": str(launch.folder.parent),
        "run": {"name": launch.folder.name, "dir": launch.folder.name},
    }
    saved = launch.folder / "configs" / "resolved" / "eval.json"
    if launch.resume and saved.is_file():
        # verifiers resumes under the saved configuration only; where and how fast it runs may differ.
        old = json.loads(saved.read_text(encoding="utf-8"))
        for name, value in place.items():
            old[name] = {**old[name], **value} if isinstance(value, dict) and old.get(name) else value
        write_whole(saved, json.dumps(old, indent=2) + "\n")
        arguments = ["@", str(saved), "--resume"]
    else:
        path = launch.folder / "eval.json"
        write_whole(path, json.dumps({**place, **_what(manifest), "push": launch.push}, indent=2) + "\n")
        arguments = ["@", str(path)]
    with contextlib.nullcontext() if launch.dashboard else _silenced():
        main(arguments)


def _what(manifest: Manifest) -> dict[str, Any]:
    """The part of a v1 configuration that decides the result."""
    config: dict[str, Any] = {
        "env": {"taskset": {"id": manifest.environment, **manifest.env_args}},
        "model": manifest.model,
        "sampling": manifest.sampling,
        "num_rollouts": manifest.rollouts,
    }
    if version("verifiers").startswith("0.3."):
        return config | {"serve": None, "num_tasks": manifest.n}
    return config | {"select": {"limit": manifest.n}}


def _run_legacy(manifest: Manifest, launch: Launch) -> None:
    from verifiers.legacy.scripts.eval import main

    if launch.push:
        raise MindscopeError("--push works with --api v1 only; a legacy run is uploaded with `prime eval push`")
    arguments = [
        manifest.environment, "--model", manifest.model,
        "--api-base-url", manifest.base_url, "--api-key-var", manifest.api_key_var,
        "--num-examples", str(-1 if manifest.n is None else manifest.n),
        "--rollouts-per-example", str(manifest.rollouts), "--max-concurrent", str(launch.concurrency),
        "--env-args", json.dumps(manifest.env_args), "--sampling-args", json.dumps(manifest.sampling),
        "--save-results", "--output-dir", str(launch.folder), "--disable-tui", "--abbreviated-summary",
        "--disable-env-server",
    ]  # fmt: skip
    if launch.resume and (results := _legacy_results(launch.folder)):
        _drop_failed_rows(results)
        arguments += ["--resume", str(results.parent)]
    with _silenced():
        main(arguments)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Drop what the runner prints on stdout, every trace in full; its log and its progress go to stderr."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _legacy_results(folder: Path) -> Path | None:
    found = sorted(folder.glob("evals/*/*/results.jsonl"))
    if len(found) > 1:
        raise MindscopeError(f"{folder} holds {len(found)} legacy result files; a run folder holds one")
    return found[0] if found else None


def _drop_failed_rows(path: Path) -> None:
    """Take failed rows, and a torn last one, out of a legacy results file, so that its resume runs them again."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if row.get("error") is None:
            kept.append(line)
    write_whole(path, "".join(kept))
