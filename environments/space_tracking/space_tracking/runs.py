"""What a table is made of: one model's readouts of the corpus, wherever they were taken.

    load_run("outputs/scores/embedded")         # a folder of `mindscope space-tracking score -o`
    load_run("outputs/evals/…")                 # a run of either verifiers generation, or of `mindscope eval`

A scoring folder holds `mindscope.json`, the settings, and `readouts.jsonl`, one prompt a line, appended as it is
read. A line that a killed process left half written is dropped when the run goes on.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from mindscope import __version__
from mindscope.errors import MindscopeError
from mindscope.records import MANIFEST, Manifest, installed_versions, write_whole
from mindscope.report.runs import Run, read_run
from mindscope.stimuli import data_path, sha256
from mindscope.validation import parse
from pydantic import BaseModel, ConfigDict, ValidationError

from space_tracking.corpus import Row, load, load_distinct
from space_tracking.judgement import Judgement, Readout, UnscoredError, judge
from space_tracking.paradigm import DATA_FILES, Settings, neutral_prompt, readout_of, trials

READOUTS = "readouts.jsonl"


class ReadRun(BaseModel):
    """One model's answers to some rows. A row is in exactly one of the three."""

    model_config = ConfigDict(frozen=True)

    label: str
    """The model, as tables call it."""
    how: str
    """Where the answers came from, a phrase."""
    judged: dict[str, Judgement]
    """By row id, where log-probabilities were read."""
    replied: dict[str, dict[str, float]]
    """By row id the measures of generated replies, averaged over a row's rollouts."""
    unscored: dict[str, str]
    """By row id why there is no score."""
    tokens: dict[str, dict[tuple[int, ...], int]]
    """By colour how often it was which ids; empty where the tokenizer was out of reach."""


class ReadoutFolder:
    """The records of one scoring run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path / READOUTS

    @classmethod
    def open(cls, path: Path, about: Manifest, *, resume: bool) -> Self:
        """A new folder at `path`, or with `resume` the one there; raises MindscopeError when it holds anything else."""
        if not resume:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise MindscopeError(f"{path} exists and is not an empty folder; add --resume to go on with it")
            path.mkdir(parents=True, exist_ok=True)
            write_whole(path / MANIFEST, about.model_dump_json(indent=2) + "\n")
            return cls(path)
        if differences := _manifest(path).differences(about):
            raise MindscopeError(
                f"{path} was made with other settings, and mixing them would spoil it: {'; '.join(differences)}"
            )
        folder = cls(path)
        folder._drop_torn_line()
        return folder

    def readouts(self) -> dict[str, Readout]:
        """By prompt; raises MindscopeError that names a line which is no readout."""
        found: dict[str, Readout] = {}
        text = self._file.read_text(encoding="utf-8") if self._file.exists() else ""
        for number, line in enumerate(text.split("\n")[:-1], start=1):
            try:
                record = json.loads(line)
                found[record["prompt"]] = Readout.model_validate(record["readout"])
            except (ValueError, KeyError, TypeError, ValidationError) as error:
                raise MindscopeError(f"{self._file}:{number}: not a readout ({type(error).__name__})") from None
        return found

    def append(self, readouts: Mapping[str, Readout]) -> None:
        """Keep these, by prompt, before anything else happens."""
        lines = [
            json.dumps({"prompt": prompt, "readout": readout.model_dump(mode="json")}, ensure_ascii=False)
            for prompt, readout in readouts.items()
        ]
        with self._file.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())

    def _drop_torn_line(self) -> None:
        if self._file.exists():
            with self._file.open("rb+") as file:
                file.truncate(file.read().rfind(b"\n") + 1)


def manifest(model: str, settings: Settings, loading: Mapping[str, Any]) -> Manifest:
    """The record of a white-box run of `settings`; `loading` is how the model was loaded."""
    return Manifest(
        environment="space_tracking",
        environment_version=version("space-tracking"),
        mindscope_version=__version__,
        data_sha256={file: sha256(data_path(file)) for file in DATA_FILES},
        api="whitebox",
        model=model,
        base_url="",
        api_key_var="",
        sampling={},
        env_args=settings.model_dump() | dict(loading),
        n=None,
        rollouts=1,
        versions=installed_versions(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def local_run(label: str, rows: Sequence[Row], readouts: Mapping[str, Readout]) -> ReadRun:
    """The run whose prompts were read as `readouts`; a row without one is unscored."""
    judged: dict[str, Judgement] = {}
    unscored: dict[str, str] = {}
    for row in rows:
        readout, prior = readouts.get(row.prompt), readouts.get(neutral_prompt(row) or "")
        if readout is None:
            unscored[row.id] = "not read yet"
        else:
            judged[row.id] = judge(row, readout, prior)
    scorings = sorted({readout.scoring for readout in readouts.values()})
    return ReadRun(
        label=label,
        how=f"white-box, {' and '.join(scorings).replace('_', ' ') or 'nothing read'}",
        judged=judged,
        replied={},
        unscored=unscored,
        tokens=_tokens(readouts[row.prompt] for row in rows if row.prompt in readouts),
    )


def load_run(path: Path | str, label: str | None = None) -> ReadRun:
    """The run at `path`, called `label` or by its model.

    Raises MindscopeError when there is none, it is of another environment or of other stimuli, or its rollouts were
    pairs, whose rows can't be told apart.
    """
    path = Path(path)
    if (path / READOUTS).exists():
        about = _manifest(path)
        _check_stimuli(path, about)
        arguments = {name: value for name, value in about.env_args.items() if name in Settings.model_fields}
        settings = parse(Settings, arguments, f"The settings in {path / MANIFEST}")
        rows = [row for trial in trials(settings) for row in trial.rows]
        return local_run(label or about.model, rows, ReadoutFolder(path).readouts())
    run = read_run(path)
    if (run.environment or "").replace("-", "_") != "space_tracking":
        raise MindscopeError(f"{path} is a run of {run.environment!r}, not of space_tracking")
    if run.manifest is not None:
        _check_stimuli(path, run.manifest)
    return _verifiers_run(path, run, label or run.model or path.name)


def _verifiers_run(path: Path, run: Run, label: str) -> ReadRun:
    rows = {row.id: row for row in (*load(), *load_distinct())}
    judged: dict[str, Judgement] = {}
    replies: dict[str, list[dict[str, float]]] = {}
    unscored: dict[str, str] = {}
    routes: set[str] = set()
    for rollout in run.rollouts:
        row = rows.get(rollout.item)
        if row is None:
            raise MindscopeError(
                f"{path} has a rollout of {rollout.item!r}, which is no row of the corpus. "
                "Runs with unit='pair' can't be tabulated; use unit='row'"
            )
        routes |= {name.removeprefix("route_") for name in rollout.metrics if name.startswith("route_")}
        readout = readout_of(rollout.metrics)
        if rollout.failure is not None:
            unscored[row.id] = rollout.failure.message
        elif readout is not None:
            try:
                judged[row.id] = judge(row, readout, readout_of(rollout.metrics, "prior_"))
            except UnscoredError as error:
                unscored[row.id] = str(error)
        else:
            replies.setdefault(row.id, []).append(rollout.metrics)
    scored = {*judged, *replies}
    return ReadRun(
        label=label,
        how=f"{run.base_url or 'an endpoint'}, {' and '.join(sorted(routes)) or 'no route recorded'}",
        judged=judged,
        replied={row_id: _average(each) for row_id, each in replies.items()},
        unscored={row_id: reason for row_id, reason in unscored.items() if row_id not in scored},
        tokens={},
    )


def _average(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: sum(measures[name] for measures in each) / len(each) for name in each[0]}


def _tokens(readouts: Iterable[Readout]) -> dict[str, dict[tuple[int, ...], int]]:
    found: dict[str, dict[tuple[int, ...], int]] = {}
    for readout in readouts:
        for colour, ids in (readout.token_ids or {}).items():
            counts = found.setdefault(colour, {})
            counts[ids] = counts.get(ids, 0) + 1
    return found


def _manifest(path: Path) -> Manifest:
    try:
        return Manifest.model_validate_json((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        raise MindscopeError(f"{path} holds no {MANIFEST} of a scoring run") from None


def _check_stimuli(path: Path, about: Manifest) -> None:
    changed = [name for name in DATA_FILES if about.data_sha256.get(name) != sha256(data_path(name))]
    if changed:
        raise MindscopeError(f"{path} was run on other stimuli: {', '.join(changed)} differ from those installed")
