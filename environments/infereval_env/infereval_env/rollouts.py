"""A finished verifiers run as the evaluation it amounts to, so that every measure can be taken of it.

    eta, benchmark, warnings = evaluation_of_run(Path("outputs/evals/infereval_env--m/1a2b3c4d"))

Reads `results.jsonl` (verifiers up to 0.3) and `traces.jsonl` (v1). Each rollout is one sample: a failed one is a
failed call, any other is parsed again by the strict rule, or carries its label probabilities. A run of several
wordings is as many evaluations; `setup` names the one wanted.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mindscope.errors import MindscopeError
from mindscope.report.formats import About, LegacyMetadata, parse_row
from mindscope.report.rollouts import Rollout
from mindscope.report.runs import RUN_FILES
from pydantic import BaseModel, ConfigDict, ValidationError

from infereval_env.formats import (
    Benchmark,
    EndorsementConfig,
    Evaluation,
    EvaluationItem,
    Model,
    Params,
    Sample,
    Setup,
    Usage,
    benchmark_hash,
    elicitation_hash,
    reference_hash,
)
from infereval_env.labels import most_probable
from infereval_env.paradigm import load_benchmark
from infereval_env.runlog import with_verdicts
from infereval_env.splits import Split
from infereval_env.verdicts import VERDICTS, QuestionForm, parse


class _Row(BaseModel):
    """What a rollout of this environment says of its row."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    trcode: str
    benchmark: str
    elicitation_hash: str
    reference_hash: str
    form: QuestionForm
    template: str
    frame: str
    variant: int
    style: str
    split: Split

    @property
    def setup(self) -> str:
        return f"{self.form}:{self.template}:{self.frame}:{self.variant}"


def is_run(path: Path) -> bool:
    """Whether `path` is a verifiers run: its folder, or its rollout file."""
    return path.is_dir() or path.name in RUN_FILES


def evaluation_of_run(
    path: Path, setup: str | None = None, benchmark: Benchmark | None = None
) -> tuple[Evaluation, Benchmark, list[str]]:
    """The evaluation of the run at `path`, its benchmark, and warnings.

    `benchmark` is that of the run when left out. Raises MindscopeError when there is no run of this environment, when
    it holds several wordings and `setup` picks none, or when the benchmark's wording has changed since.
    """
    file = _run_file(path)
    rollouts, about, torn = _read(file)
    rows = [(_row(rollout, file), rollout) for rollout in rollouts]
    setups = sorted({row.setup for row, _ in rows})
    if setup is None and len(setups) > 1:
        raise MindscopeError(f"{file} holds {len(setups)} setups; pick one with --setup: {', '.join(setups)}.")
    rows = [(row, rollout) for row, rollout in rows if setup in (None, row.setup)]
    if not rows:
        raise MindscopeError(f"{file} holds no rollout{f' of setup {setup!r}' if setup else ''}; it has {setups}.")
    first = rows[0][0]
    benchmark = benchmark or load_benchmark(first.benchmark)
    if first.elicitation_hash != elicitation_hash(benchmark):
        raise MindscopeError(f"The wording of benchmark {benchmark.id!r} is not what the run {file} was shown.")
    warnings = [f"{torn} line(s) of {file} are cut short and left out"] if torn else []
    if first.reference_hash != reference_hash(benchmark):
        warnings.append("the analysts' verdicts have changed since the run; those of now are used")
    samples: dict[str, list[Sample]] = {}
    for row, rollout in rows:
        held = samples.setdefault(row.trcode, [])
        held.append(_sample(rollout, row, len(held)))
    eta = Evaluation(
        id=f"{file.parent.name} {first.setup}",
        benchmark_id=benchmark.id,
        benchmark_hash=benchmark_hash(benchmark),
        model=_model(about),
        endorsement_config=EndorsementConfig(
            n_samples=max(map(len, samples.values())),
            verification_prompt_id=f"{first.template}:{first.form}",
            question_form=first.form,
            coherence_frame_id=first.frame,
        ),
        setup=Setup(
            template_id=first.template,
            verdicts="logprob" if any(_shares(rollout) for _, rollout in rows) else "vote",
            elicitation_hash=first.elicitation_hash,
            reference_hash=reference_hash(benchmark),
            split=first.split,
        ),
        framework_version=f"verifiers {about.verifiers or 'unknown'}",
        items=tuple(
            EvaluationItem(
                id=item.id,
                premises=item.premises,
                conclusions=item.conclusions,
                analyst_verdicts=item.analyst_verdicts,
                analyst_rationales=item.analyst_rationales,
                model_verdict="no_data",
                samples=tuple(samples[item.id]),
                tags=item.tags,
                references=item.references,
            )
            for item in benchmark.items
            if item.id in samples
        ),
        paraphrase_variant=first.variant,
    )
    return with_verdicts(eta), benchmark, warnings


def _run_file(path: Path) -> Path:
    found = [path] if path.is_file() else sorted(file for name in RUN_FILES for file in path.rglob(name))
    if len(found) != 1:
        raise MindscopeError(f"{path} holds {len(found)} verifiers runs ({' or '.join(RUN_FILES)}); name one.")
    return found[0]


def _read(file: Path) -> tuple[list[Rollout], About, int]:
    """The rollouts, what is known of the run, and the number of lines that a killed run left half written."""
    rollouts, about, torn = [], About(), 0
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            torn += 1
            continue
        for single in _single(row):
            try:
                rollout, about = parse_row(single)
            except ValidationError as error:
                raise MindscopeError(f"{file} is not what verifiers write: {error}") from None
            rollouts.append(rollout)
    metadata = file.parent / "metadata.json"
    if metadata.is_file():
        about = LegacyMetadata.model_validate_json(metadata.read_bytes()).about()
    return rollouts, about, torn


def _single(row: Any) -> Iterator[Any]:
    """An episode of several rollouts of one row, one at a time."""
    if isinstance(row, dict) and len(row.get("traces") or []) > 1:
        for trace in row["traces"]:
            yield {**row, "ok": trace["ok"], "traces": [trace]}
    else:
        yield row


def _row(rollout: Rollout, file: Path) -> _Row:
    try:
        return _Row.model_validate(rollout.factors)
    except ValidationError:
        raise MindscopeError(f"{file} is a run of another environment than infereval_env.") from None


def _sample(rollout: Rollout, row: _Row, index: int) -> Sample:
    if rollout.failure is not None:
        return Sample(
            sample_index=index,
            raw_response="",
            parse_status="sample_failed",
            provider_error=f"{rollout.failure.kind}: {rollout.failure.message}",
        )
    reply = "".join(message.text for message in rollout.reply)
    shares = _shares(rollout)
    first_line = reply.partition("\n")[0] if row.style == "completion" else reply
    parsed = parse(first_line, row.form, finish_reason=rollout.finish_reason)
    return Sample(
        sample_index=index,
        raw_response=reply,
        parsed_verdict=most_probable(shares) if shares else parsed.verdict,
        parse_status="ok" if shares else parsed.status,
        wall_time_ms=rollout.duration_s * 1000 if rollout.duration_s else None,
        usage=Usage(input_tokens=rollout.input_tokens, output_tokens=rollout.output_tokens),
        finish_reason=rollout.finish_reason,
        label_probabilities=shares,
    )


def _shares(rollout: Rollout) -> dict[Any, float] | None:
    found = {verdict: rollout.metrics[f"q_{verdict}"] for verdict in VERDICTS if f"q_{verdict}" in rollout.metrics}
    return found or None


def _model(about: About) -> Model:
    known = {name: about.sampling[name] for name in Params.model_fields if about.sampling.get(name) is not None}
    return Model(
        provider=about.base_url or "unknown", model_id=about.model or "unknown", params=Params.model_validate(known)
    )
