"""What the files hold: a benchmark (what is asked, and what the analysts said) and an evaluation η (what a
model said). `files` reads and writes them.

Both are infereval's JSON as that tool reads and writes it, with three additions it has no place for: an
analyst who gave no answer is `null` in `analyst_verdicts`, an item whose calls failed is `no_data`, and
`setup` in η says what produced it. Three hashes tell edits apart: `benchmark_hash` (infereval's: anything at
all), `elicitation_hash` (what a model sees), `reference_hash` (what the analysts said).
"""

import hashlib
import json
from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from infereval_env.verdicts import Outcome, ParseStatus, QuestionForm, TieBreak, Verdict


class Strict(BaseModel):
    """A part of a file: unknown keys, and values of another type, are faults."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _promoted(value: object) -> object:
    return {"citation": value} if isinstance(value, str) else value


class Reference(Strict):
    citation: str
    doi: str | None = None
    url: str | None = None
    section: str | None = None
    note: str | None = None


Ids = Annotated[tuple[str, ...], AfterValidator(lambda ids: tuple(sorted(set(ids))))]
"""A set of ids: duplicates dropped, order forgotten."""
References = tuple[Annotated[Reference, BeforeValidator(_promoted)], ...]
Variation = Literal["base", "strengthen", "contested", "defeat", "abstain_anchor", "monotonicity_step"]
Expected = Literal["non_decreasing", "non_increasing"]


class Bearer(Strict):
    expression: str
    paraphrases: tuple[str, ...] = ()
    references: References = ()
    ordinal_family: str | None = None


class Analyst(Strict):
    id: str
    display_name: str | None = None
    notes: str | None = None
    expertise_description: str | None = None
    panel: str | None = None


class TemplateBuilder(Strict):
    kind: Literal["template"] = "template"
    template: str = "{expressions}"
    joiner: str = " and "


class PluginBuilder(Strict):
    """A context builder named by import path. It is read and never run: code does not come from a data
    file."""

    kind: Literal["plugin"]
    plugin: str


def _kind_named(value: object) -> object:
    return {"kind": "template", **value} if isinstance(value, dict) else value


Builder = Annotated[
    Annotated[TemplateBuilder | PluginBuilder, Field(discriminator="kind")], BeforeValidator(_kind_named)
]


class ContextBuilders(Strict):
    premise: Builder = TemplateBuilder()
    conclusion: Builder = TemplateBuilder(joiner=" or ")


class VerificationPrompt(Strict):
    template: str
    system: str | None = None
    parse_regex: str | None = None
    id: str | None = None


class RsrTarget(Strict):
    X: Ids
    A: Ids


class ConstructionMetadata(Strict):
    authored_by: str | None = None
    authored_on: date | None = None
    authored_blind_to_models: tuple[str, ...] = ()
    source: str | None = None


class MonotonicityStep(Strict):
    family: str
    tier: str
    tier_index: int
    expected: Expected = "non_decreasing"
    fixed: str | None = None


class Item(Strict):
    id: str
    premises: Ids
    conclusions: Ids
    analyst_verdicts: tuple[Verdict | None, ...]
    analyst_rationales: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    rsr_target: RsrTarget | None = None
    references: References = ()
    factor_levels: dict[str, str] = {}
    construction_metadata: ConstructionMetadata | None = None
    ladder: str | None = None
    variation: Variation | None = None
    target: str | None = None
    placeholder: Literal["good", "bad", "abstain", "contested"] | None = None
    """The author's own guess. Measurement takes `readings.Reading`, which has no such field."""
    construction_note: str | None = None
    monotonicity_step: MonotonicityStep | None = None


class FactorConstraints(Strict):
    min_items_per_cell: int | None = None


class CopresenceRule(Strict):
    families: tuple[str, ...]
    exhaustivity: bool = False


class EntailmentRule(Strict):
    antecedent: str
    consequent: str


class Regularity(Strict):
    description: str
    test_item_ids: tuple[str, ...] = ()


class Benchmark(Strict):
    """What is asked and what the analysts said, with infereval's fields and defaults."""

    schema_version: Literal["1.0"] = "1.0"
    id: str
    title: str | None = None
    domain: str | None = None
    description: str | None = None
    bearers: dict[str, Bearer]
    analysts: Annotated[tuple[Analyst, ...], Field(min_length=1)]
    context_builders: ContextBuilders = ContextBuilders()
    verification_prompt: VerificationPrompt | None = None
    template_id: str | None = None
    coherence_frame_id: str | None = None
    items: tuple[Item, ...]
    factors: dict[str, tuple[str, ...]] = {}
    factor_constraints: FactorConstraints | None = None
    factor_kinds: dict[str, Literal["substantive", "experimentally_controlled"]] = {}
    primary_panel: str | None = None
    references: References = ()
    ordinal_families: dict[str, tuple[str, ...]] = {}
    copresence_rules: tuple[CopresenceRule, ...] = ()
    entailment_rules: tuple[EntailmentRule, ...] = ()
    regularities: tuple[Regularity, ...] = ()
    targets: tuple[str, ...] = ()

    def panels(self) -> dict[str, list[int]]:
        """Positions of each panel's analysts; empty when no analyst declares a panel."""
        found: dict[str, list[int]] = {}
        for position, analyst in enumerate(self.analysts):
            if analyst.panel is not None:
                found.setdefault(analyst.panel, []).append(position)
        return found


class Params(BaseModel):
    """Sampling settings; what a provider adds is kept."""

    model_config = ConfigDict(extra="allow", frozen=True)

    temperature: float = 1.0
    max_tokens: int = 1024
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()


class Model(Strict):
    provider: str
    model_id: str
    params: Params = Params()


class EndorsementConfig(Strict):
    n_samples: Annotated[int, Field(ge=1)] = 5
    tie_break: TieBreak = "abstain"
    verification_prompt_id: str = "default-v1"
    context_builder_premise_id: str = "conjunction-and-v1"
    context_builder_conclusion_id: str = "disjunction-or-v1"
    question_form: QuestionForm = "support"
    coherence_frame_id: str = "thin-v1"


class Setup(Strict):
    """What produced η, beyond what infereval's file can say."""

    template_id: str | None = None
    verdicts: Literal["vote", "logprob"] = "vote"
    parser: Literal["strict", "first_label"] = "strict"
    strip_tex: bool = True
    elicitation_hash: str | None = None
    reference_hash: str | None = None
    split: Literal["all", "train", "test"] = "all"
    """Which of the items were run; those of `train` may have been trained on, and get no κ."""


class Usage(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    input_tokens: int | None = None
    output_tokens: int | None = None


class Sample(Strict):
    """One call. `parsed_verdict` is null when it failed; infereval stores an abstention there."""

    sample_index: int
    raw_response: str
    parsed_verdict: Verdict | None = None
    parse_status: ParseStatus = "ok"
    request_id: str | None = None
    wall_time_ms: float | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    reasoning_tokens: int | None = None
    provider_error: str | None = None
    label_probabilities: dict[Verdict, float] | None = None
    """Under `verdicts="logprob"`: the probability of each label; what is missing to 1 went to other
    answers."""

    @property
    def failed(self) -> bool:
        return self.provider_error is not None or self.parse_status == "sample_failed"


class MajorityVote(Strict):
    good: int = 0
    bad: int = 0
    abstain: int = 0
    verdict: Outcome
    tie_broken: bool = False


class EvaluationItem(Strict):
    id: str
    premises: Ids
    conclusions: Ids
    analyst_verdicts: tuple[Verdict | None, ...]
    analyst_rationales: tuple[str, ...] | None = None
    model_verdict: Outcome
    samples: tuple[Sample, ...] = ()
    majority_vote: MajorityVote | None = None
    tags: tuple[str, ...] = ()
    references: References = ()


class Evaluation(Strict):
    """η: one model's verdicts on one benchmark under one setup."""

    schema_version: Literal["1.0"] = "1.0"
    id: str
    benchmark_id: str
    benchmark_hash: str | None = None
    model: Model
    endorsement_config: EndorsementConfig = EndorsementConfig()
    setup: Setup | None = None
    framework_version: str = "unknown"
    started_at: datetime | None = None
    finished_at: datetime | None = None
    items: tuple[EvaluationItem, ...]
    references: References = ()
    paraphrase_variant: int = 0


def dump(part: BaseModel) -> dict[str, Any]:
    """A part as plain JSON data, absent values left out."""
    return part.model_dump(mode="json", exclude_none=True)


def benchmark_hash(benchmark: Benchmark) -> str:
    """infereval's hash of the whole benchmark, notes and placeholders included."""
    return _sha256(dump(benchmark))


def elicitation_hash(benchmark: Benchmark) -> str:
    """Hash of what a model is shown. Edits to notes, analysts or placeholders leave it, as does reordering
    items."""
    prompt = benchmark.verification_prompt
    return _sha256(
        {
            "bearers": {
                name: {"expression": bearer.expression, "paraphrases": list(bearer.paraphrases)}
                for name, bearer in benchmark.bearers.items()
            },
            "context_builders": dump(benchmark.context_builders),
            "verification_prompt": dump(prompt) if prompt else None,
            "items": {item.id: [list(item.premises), list(item.conclusions)] for item in benchmark.items},
        }
    )


def reference_hash(benchmark: Benchmark) -> str:
    """Hash of what each analyst said on each item; the order of analysts and items leaves it."""
    names = [analyst.id for analyst in benchmark.analysts]
    said = {item.id: dict(zip(names, item.analyst_verdicts, strict=True)) for item in benchmark.items}
    return _sha256(said)


def _sha256(data: dict[str, Any]) -> str:
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
