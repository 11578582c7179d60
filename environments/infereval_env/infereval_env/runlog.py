"""run.jsonl: the record a run appends to, one event a line, and the evaluation it adds up to.

    with RunLog(Path("run.jsonl")) as log:                    # refuses a log that another process is writing
        log.append(RunStarted(…), SampleCompleted(…))         # on its way to disk before this returns
    so_far = read_progress(Path("run.jsonl"))                 # what a resumed run need not ask again
    eta, warnings = rebuild(Path("run.jsonl"), benchmark)     # every answered call counts, each once

The log is the source of truth: it is written call by call, so a run that was killed loses nothing, and an
evaluation can be made from it at any time. A call that failed and was made again later counts as answered. A
last line cut short by a crash is left out, with a warning; any other malformed line is a fault.

The events and keys are infereval's; `setup` and `label_probabilities` are additions it does not know.
"""

import fcntl
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, Self

from mindscope.errors import MindscopeError
from mindscope.stimuli import loads, read_text
from pydantic import BaseModel, ConfigDict, ValidationError

from infereval_env.files import faults_error, shape_faults
from infereval_env.formats import (
    Benchmark,
    EndorsementConfig,
    Evaluation,
    EvaluationItem,
    Item,
    MajorityVote,
    Model,
    Params,
    Sample,
    Setup,
    Usage,
    benchmark_hash,
    elicitation_hash,
    reference_hash,
)
from infereval_env.readings import take_readings
from infereval_env.verdicts import Outcome, Parsed, ParseStatus, QuestionForm, Verdict, parse


class Event(BaseModel):
    """What every line holds. Keys that are of no use here are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    ts: datetime
    event: str
    run_id: str
    benchmark_id: str
    framework_version: str = "unknown"
    level: str = "INFO"
    logger: str = "infereval_env"


class RunStarted(Event):
    event: Literal["run.started"] = "run.started"
    benchmark_hash: str | None = None
    n_items: int
    provider: str
    model_id: str
    params: Params
    endorsement_config: EndorsementConfig
    template_id: str | None = None
    coherence_frame_id: str | None = None
    strip_tex: bool = True
    paraphrase_variant: int = 0
    setup: Setup | None = None


class ItemStarted(Event):
    event: Literal["item.started"] = "item.started"
    item_id: str
    premise_ids: tuple[str, ...]
    conclusion_ids: tuple[str, ...]
    prompt_hash: str
    prompt: str
    system: str | None = None
    question_form: str | None = None


class SampleCompleted(Event):
    event: Literal["sample.completed"] = "sample.completed"
    item_id: str
    sample_index: int
    request_id: str | None = None
    prompt_hash: str | None = None
    raw_response: str
    parsed_verdict: Verdict
    parse_status: ParseStatus
    wall_time_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    reasoning_tokens: int | None = None
    label_probabilities: dict[Verdict, float] | None = None


class SampleFailed(Event):
    event: Literal["sample.failed"] = "sample.failed"
    item_id: str
    sample_index: int
    prompt_hash: str | None = None
    err: str


class ItemCompleted(Event):
    event: Literal["item.completed"] = "item.completed"
    item_id: str
    verdict: Outcome
    tie_broken: bool
    good: int
    bad: int
    abstain: int


class RunFinished(Event):
    event: Literal["run.finished"] = "run.finished"
    n_items: int
    wall_time_s: float


_KINDS: dict[str, type[Event]] = {
    "run.started": RunStarted,
    "item.started": ItemStarted,
    "sample.completed": SampleCompleted,
    "sample.failed": SampleFailed,
    "item.completed": ItemCompleted,
    "run.finished": RunFinished,
}


def read_log(path: Path) -> tuple[list[Event], list[str]]:
    """The events of a log, and warnings. Raises MindscopeError listing every malformed line.

    Events of other kinds, such as a provider's retries, are passed over.
    """
    lines = read_text(path).splitlines()
    events, faults, warnings = [], [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            data = loads(line)
        except ValueError as error:
            if number == len(lines):
                warnings.append(f"the last line of {path} is cut short and is left out")
            else:
                faults.append(f"line {number}: not JSON ({error})")
            continue
        kind = _KINDS.get(data.get("event", "")) if isinstance(data, dict) else None
        if kind is None and not (isinstance(data, dict) and isinstance(data.get("event"), str)):
            faults.append(f"line {number}: not an event")
        elif kind is not None:
            try:
                events.append(kind.model_validate(data))
            except ValidationError as error:
                faults += [f"line {number} {fault}" for fault in shape_faults(error, data)]
    if faults:
        raise faults_error(str(path), faults)
    return events, warnings


class RunLog:
    """A log open for appending, by one process at a time.

    `append` hands its lines to the operating system before it returns, so that a killed process loses none; `sync`
    has them on disk when it returns. A last line that a crash cut short is taken off when the log is opened.
    Raises MindscopeError when the log cannot be written or another process has it open.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise MindscopeError(f"The log {path} cannot be written: {error.strerror}.") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise MindscopeError(f"The log {path} is being written by another process.") from None
        text = path.read_bytes()
        os.ftruncate(self._file, text.rfind(b"\n") + 1)

    def append(self, *events: Event) -> None:
        lines = "".join(f"{event.model_dump_json(exclude_none=True)}\n" for event in events).encode()
        while lines:
            lines = lines[os.write(self._file, lines) :]

    def sync(self) -> None:
        os.fsync(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sync()
        os.close(self._file)


class Progress(NamedTuple):
    """How far a run got: its start, the items begun, and the answered calls by item and sample index."""

    started: RunStarted
    begun: set[str]
    answered: dict[str, dict[int, Sample]]


def read_progress(path: Path, run_id: str | None = None) -> Progress:
    """What the log holds of a run. Raises MindscopeError as `rebuild` does."""
    events, _ = read_log(path)
    started = _starts(events, path, run_id)
    own = [event for event in events if event.run_id == started.run_id]
    answered = {
        name: {index: sample for index, sample in held.items() if not sample.failed}
        for name, held in _samples(own, None, []).items()
    }
    return Progress(started, {event.item_id for event in own if isinstance(event, ItemStarted)}, answered)


def check_continues(before: RunStarted, now: RunStarted, path: Path) -> None:
    """Raises MindscopeError naming what differs between the setup of a run and that of its continuation."""
    fields = (
        "benchmark_id", "benchmark_hash", "provider", "model_id", "params", "endorsement_config", "template_id",
        "setup", "paraphrase_variant",
    )  # fmt: skip
    differing = [name for name in fields if getattr(before, name) != getattr(now, name)]
    if differing:
        raise MindscopeError(
            f"Run {before.run_id!r} in {path} was made with another {', '.join(differing)}; a run is continued under "
            "the setup it was begun with."
        )


def rebuild(
    path: Path, benchmark: Benchmark, *, run_id: str | None = None, reparse: bool = False
) -> tuple[Evaluation, list[str]]:
    """The evaluation a log adds up to, and warnings; `run_id` picks a run where the file holds several.

    Items the run did not reach are absent. `reparse` reads every reply anew by the strict rule instead of
    keeping the logged verdict. Raises MindscopeError when the log is not of this benchmark, or a run was
    continued under another setup.
    """
    events, warnings = read_log(path)
    started = _starts(events, path, run_id)
    own = [event for event in events if event.run_id == started.run_id]
    if started.benchmark_id != benchmark.id:
        raise MindscopeError(f"{path} is a run of benchmark {started.benchmark_id!r}, not of {benchmark.id!r}.")
    unchanged = started.benchmark_hash in (None, benchmark_hash(benchmark))
    if not unchanged:
        warnings.append(f"the benchmark is not the one that was run, whose hash is {started.benchmark_hash}")
    finished = [event for event in own if isinstance(event, RunFinished)]
    if not finished:
        warnings.append(f"run {started.run_id!r} did not finish; the evaluation holds what it got to")
    samples = _samples(own, started.endorsement_config.question_form if reparse else None, warnings)
    asked = {event.item_id: event for event in own if isinstance(event, ItemStarted)}
    listed = {item.id: item for item in benchmark.items}
    changed = [
        name
        for name, event in asked.items()
        if name not in listed
        or (set(event.premise_ids), set(event.conclusion_ids))
        != (set(listed[name].premises), set(listed[name].conclusions))
    ]
    if changed:
        raise MindscopeError(f"The items {changed} of {path} are other implications in benchmark {benchmark.id!r}.")
    setup = started.setup or Setup(
        template_id=started.template_id,
        parser="first_label",
        strip_tex=started.strip_tex,
        elicitation_hash=elicitation_hash(benchmark) if unchanged else None,
    )
    eta = Evaluation(
        id=started.run_id,
        benchmark_id=benchmark.id,
        benchmark_hash=started.benchmark_hash or benchmark_hash(benchmark),
        model=Model(provider=started.provider, model_id=started.model_id, params=started.params),
        endorsement_config=started.endorsement_config,
        setup=setup.model_copy(
            update={"reference_hash": reference_hash(benchmark), **({"parser": "strict"} if reparse else {})}
        ),
        framework_version=started.framework_version,
        started_at=started.ts,
        finished_at=finished[-1].ts if finished else None,
        items=tuple(_item(item, samples[item.id]) for item in benchmark.items if item.id in samples),
        paraphrase_variant=started.paraphrase_variant,
    )
    return with_verdicts(eta), warnings


def with_verdicts(eta: Evaluation) -> Evaluation:
    """η with every item's verdict and vote drawn from its samples."""
    items = tuple(
        item.model_copy(
            update={
                "model_verdict": reading.outcome,
                "majority_vote": MajorityVote(
                    good=reading.counts[0],
                    bad=reading.counts[1],
                    abstain=reading.counts[2],
                    verdict=reading.outcome,
                    tie_broken=reading.tie_broken,
                ),
            }
        )
        for item, reading in zip(eta.items, take_readings(eta), strict=True)
    )
    return eta.model_copy(update={"items": items})


def _starts(events: Sequence[Event], path: Path, run_id: str | None) -> RunStarted:
    """The start of the one run asked for. A resumed run has several, all under one setup."""
    starts = [event for event in events if isinstance(event, RunStarted)]
    runs = sorted({start.run_id for start in starts})
    if not runs or (run_id is not None and run_id not in runs):
        raise MindscopeError(f"{path} holds no run{f' {run_id!r}' if run_id else ''}; its runs are {runs}.")
    if run_id is None and len(runs) > 1:
        raise MindscopeError(f"{path} holds the runs {runs}; say which one.")
    own = [start for start in starts if run_id in (None, start.run_id)]
    for later in own[1:]:
        check_continues(own[0], later, path)
    return own[0]


def _samples(
    events: Sequence[Event], reparse_as: QuestionForm | None, warnings: list[str]
) -> dict[str, dict[int, Sample]]:
    """Per item, its calls by sample index; an answer outranks a failure, and the first answer a later one."""
    found: dict[str, dict[int, Sample]] = {}
    for event in events:
        if isinstance(event, ItemStarted):
            found.setdefault(event.item_id, {})
        elif isinstance(event, SampleFailed):
            held = found.setdefault(event.item_id, {})
            held.setdefault(event.sample_index, _failed(event))
        elif isinstance(event, SampleCompleted):
            held = found.setdefault(event.item_id, {})
            before = held.get(event.sample_index)
            if before is None or before.failed:
                held[event.sample_index] = sample_of(event, reparse_as)
            else:
                where = f"item {event.item_id!r}, sample {event.sample_index}"
                warnings.append(f"{where}: answered twice, the first answer counts")
    return found


def _failed(event: SampleFailed) -> Sample:
    return Sample(
        sample_index=event.sample_index,
        raw_response="",
        parsed_verdict=None,
        parse_status="sample_failed",
        provider_error=event.err,
    )


def sample_of(event: SampleCompleted, reparse_as: QuestionForm | None = None) -> Sample:
    """The call that an event tells of; `reparse_as` reads its reply anew by the strict rule."""
    parsed = Parsed(event.parsed_verdict, event.parse_status)
    if reparse_as and event.label_probabilities is None:
        parsed = parse(event.raw_response, reparse_as, finish_reason=event.finish_reason)
    used = event.input_tokens is not None or event.output_tokens is not None
    return Sample(
        sample_index=event.sample_index,
        raw_response=event.raw_response,
        parsed_verdict=parsed.verdict,
        parse_status=parsed.status,
        request_id=event.request_id,
        wall_time_ms=event.wall_time_ms,
        usage=Usage(input_tokens=event.input_tokens, output_tokens=event.output_tokens) if used else None,
        finish_reason=event.finish_reason,
        reasoning_tokens=event.reasoning_tokens,
        label_probabilities=event.label_probabilities,
    )


def _item(item: Item, samples: dict[int, Sample]) -> EvaluationItem:
    return EvaluationItem(
        id=item.id,
        premises=item.premises,
        conclusions=item.conclusions,
        analyst_verdicts=item.analyst_verdicts,
        analyst_rationales=item.analyst_rationales,
        model_verdict="no_data",
        samples=tuple(sample for _, sample in sorted(samples.items())),
        tags=item.tags,
        references=item.references,
    )
