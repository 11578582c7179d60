"""Reads a finished or interrupted run of either verifiers generation.

    run = read_run("outputs/evals/ps_primal--embedded/3f2a91c0")
    [rollout.reward for rollout in run.rollouts if rollout.failure is None]

verifiers up to 0.3 write `results.jsonl`, v1 writes `traces.jsonl`; both become one typed `Run`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from pydantic_core import from_json

from mindscope.errors import MindscopeError
from mindscope.records import MANIFEST, Manifest
from mindscope.report.formats import About, LegacyMetadata, V1Config, parse_row
from mindscope.report.rollouts import Rollout

RUN_FILES = ("results.jsonl", "traces.jsonl")
"""Names under which verifiers keep a run's rollouts: up to 0.3, and v1."""

_NESTED_BELOW = 3
"""verifiers 0.3 puts a run this many folders below the one it was told to write to."""

_SHOWN = 10
"""Faults or files listed in one message before the rest is only counted."""


class Run(BaseModel):
    """A run: how it was set up, and every rollout recorded, in the file's order."""

    model_config = ConfigDict(frozen=True)

    environment: str | None
    model: str | None
    base_url: str | None
    """Without user name, password and query."""
    sampling: dict[str, JsonValue]
    env_args: dict[str, JsonValue]
    verifiers: str | None
    manifest: Manifest | None
    """mindscope's own record of the run, when `mindscope eval` made it."""
    rollouts: tuple[Rollout, ...]
    torn_lines: int
    """Lines that a killed run left half written; their rollouts are not in `rollouts`."""


def read_run(path: str | Path) -> Run:
    """Read the run at `path`: its folder, a folder with exactly one run below it, or the rollout file itself.

    Raises MindscopeError when there is no run or more than one, or when a line (other than one a killed run
    left half written) or a companion file is not what verifiers write; one message names all faulty lines.
    """
    file = _run_file(Path(path))
    abouts: list[About] = []
    rollouts: list[Rollout] = []
    torn, faults = 0, []
    for number, line in _lines(file):
        try:
            row = json.loads(line)
        except ValueError as error:
            if _is_torn(line, error):
                torn += 1
            else:
                faults.append(f"{file}:{number}: not a line of JSON: {error}")
            continue
        try:
            rollout, about = parse_row(row)
        except (ValidationError, MindscopeError) as error:
            faults.append(f"{file}:{number}: {_explain(error)}")
            continue
        rollouts.append(rollout)
        abouts.append(about)
    if faults:
        raise MindscopeError("\n".join(_listed(faults)))
    return _assemble(file.parent, abouts, rollouts, torn)


# ---- finding the file and its lines ----


def _run_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise MindscopeError(f"{path}: no such file or folder")
    found = _run_files(path)
    if not found:
        raise MindscopeError(f"{path}: no run here; looked for {' or '.join(RUN_FILES)} in it and below it")
    if len(found) > 1:
        listed = _listed([f"  {file}" for file in found])
        raise MindscopeError("\n".join([f"{path}: {len(found)} runs here, name one of them:", *listed]))
    return found[0]


def _run_files(folder: Path) -> list[Path]:
    return sorted(file for name in RUN_FILES for file in folder.rglob(name) if file.is_file())


def _listed(entries: Sequence[str]) -> list[str]:
    more = len(entries) - _SHOWN
    return [*entries[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, line


def _is_torn(line: bytes, error: ValueError) -> bool:
    """Whether `line` is the beginning of a JSON object. It need not be the last line: a resumed run goes on
    below the one it was killed in."""
    if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
        return False
    try:
        return isinstance(from_json(line.rstrip(b"\r\n"), allow_partial=True), dict)
    except ValueError:
        return False


def _explain(error: ValidationError | MindscopeError) -> str:
    if isinstance(error, MindscopeError):
        return str(error)
    faults = []
    for fault in error.errors(include_url=False):
        field = ".".join(map(str, fault["loc"])) or "as a whole"
        faults.append(f"{field}: {fault['msg'].lower()}, found {str(fault['input'])[:60]!r}")
    return "; ".join(faults)


# ---- what the run was ----


def _assemble(folder: Path, abouts: Sequence[About], rollouts: Sequence[Rollout], torn: int) -> Run:
    manifest = _manifest(folder)
    sources = [_declared(manifest), _configured(folder), *abouts[:1]]
    known: dict[str, Any] = {
        name: next((value for source in sources if (value := getattr(source, name))), None)
        for name in About.model_fields
    }
    return Run(
        environment=known["environment"],
        model=known["model"],
        base_url=_public_url(known["base_url"]),
        sampling=_chosen(known["sampling"] or {}),
        env_args=_chosen(known["env_args"] or {}),
        verifiers=known["verifiers"],
        manifest=manifest,
        rollouts=tuple(rollouts),
        torn_lines=torn,
    )


def _manifest(folder: Path) -> Manifest | None:
    """The manifest in the run's own folder, or above it where no other run could be meant."""
    for candidate in (folder, *list(folder.parents)[:_NESTED_BELOW]):
        manifest = _load(candidate / MANIFEST, Manifest)
        if manifest is not None:
            return manifest if candidate == folder or len(_run_files(candidate)) == 1 else None
    return None


def _declared(manifest: Manifest | None) -> About:
    if manifest is None:
        return About()
    return About(
        environment=manifest.environment,
        model=manifest.model,
        base_url=manifest.base_url,
        sampling=manifest.sampling,
        env_args=manifest.env_args,
        verifiers=manifest.versions.get("verifiers"),
    )


def _configured(folder: Path) -> About:
    found = _load(folder / "metadata.json", LegacyMetadata) or _load(
        folder / "configs" / "resolved" / "eval.json", V1Config
    )
    return found.about() if found is not None else About()


M = TypeVar("M", bound=BaseModel)


def _load(file: Path, model: type[M]) -> M | None:
    if not file.is_file():
        return None
    try:
        return model.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise MindscopeError(f"{file}: {_explain(error)}") from None


def _public_url(urls: str | None) -> str | None:
    if urls is None:
        return None
    parts = [urlsplit(url) for url in urls.split(",")]
    return ",".join(
        part._replace(netloc=part.netloc.rpartition("@")[2], query="", fragment="").geturl() for part in parts
    )


def _chosen(settings: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Without what was left to the server."""
    return {name: value for name, value in settings.items() if value is not None and value != {}}
