"""The item table of pal50: one row a test trial, with every factor of the trial and what became of it.

    rows = read_items("outputs/pal50--model")       # of either verifiers generation
    write_items(rows, "items.jsonl")

The table is rebuilt from the run's own results file: each recorded reply is read again, against the design that was
recorded beside it. No side file is needed.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mindscope.errors import MindscopeError
from mindscope.records import write_whole
from mindscope.report.runs import RUN_FILES, read_run
from pydantic import BaseModel, ValidationError

from pal50.design import Design
from pal50.scoring import Outcome, Reply, ScoredTrial, score
from pal50.settings import Direction, Study
from pal50.traces import replies_in

__all__ = ["Direction", "ItemRow", "Outcome", "Study", "read_items", "write_items"]


class ItemRow(ScoredTrial):
    """One test trial of a run. A rollout whose model call failed has no rows: its trials were not measured."""

    run: str
    """The run's folder."""
    participant: int
    rollout: int
    """0 for the participant's first recorded rollout in this run, 1 for the second, …"""


def read_items(run: str | Path) -> list[ItemRow]:
    """The item table of a run of pal50: its folder, or the results file itself, of either verifiers generation.

    Rollouts come in the order of the file, trials in the order of test. Raises `MindscopeError` when there is no run or
    more than one, or a rollout is not one of pal50.
    """
    run = Path(run)
    rollouts = read_run(run).rollouts
    file = run if run.is_file() else next(file for name in RUN_FILES for file in run.rglob(name))
    rows: list[ItemRow] = []
    seen: Counter[int] = Counter()
    for (number, recorded), rollout in zip(_whole_lines(file), rollouts, strict=True):
        if rollout.failure is not None:
            continue
        try:
            session = _session_of(recorded)
        except (KeyError, ValidationError) as error:
            raise MindscopeError(
                f"{file}:{number}: this rollout has no design of pal50 beside its replies; was it run by another "
                f"environment, or another version? ({type(error).__name__}: {error})"
            ) from None
        participant = session.design.participant
        rows += [
            ItemRow(run=str(run), participant=participant, rollout=seen[participant], **dict(trial))
            for trial in score(session.design, session.replies).trials
        ]
        seen[participant] += 1
    return rows


def write_items(rows: Iterable[ItemRow], path: str | Path) -> None:
    """The rows as JSONL; the file is either whole or absent."""
    write_whole(Path(path), "".join(row.model_dump_json() + "\n" for row in rows))


# ---- the two shapes of a results file ----


class _Recorded(BaseModel):
    design: Design
    replies: list[Reply]


def _whole_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines that `read_run` made rollouts of: it has refused every other but those a killed run left torn."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield number, json.loads(line)
            except ValueError:
                continue


def _session_of(recorded: dict[str, Any]) -> _Recorded:
    if "traces" not in recorded:
        return _Recorded.model_validate(recorded["info"])
    (trace,) = recorded["traces"]
    design = Design.model_validate(recorded["task"]["data"]["design"])
    return _Recorded(design=design, replies=replies_in(trace))
