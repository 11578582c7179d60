"""The environment's rows and rewards: one row is an item of a benchmark asked in one wording.

    rows = trials(Settings.parse({"forms": ["coherence"], "reward": "agree"}))
    score(rows[0], "INCOHERENT").reward           # 1.0 where the panel's consensus is good
    score_labels(rows[0], {"good": 0.7, "bad": 0.2, "abstain": 0.1}).reward
    quadratic(rows[0], ["good", "good", "bad"])   # rewards of three rollouts of one row, together

Three rewards. `agree`: 1 for the panel's consensus, 0 for anything else. `logprob`: from the label probabilities q of
one call and the shares p of the panel, 1 - ½ Σ (q - p)², with what went to no label as a category of its own; proper,
so only q = p earns 1. `quad`: the same score estimated from a group of sampled verdicts, for training: rollout i earns
2 p(v_i) less twice the share of the other rollouts that say v_i too. Its gradient in the policy q is that of
2 q·p - q·q, which is highest at q = p, where 1[v = consensus] would be highest with all on one verdict. A reply without
a readable verdict is a fourth category that no analyst chose, and costs 1 besides.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from mindscope.errors import MindscopeError
from mindscope.stimuli import data_path
from mindscope.validation import parse
from pydantic import BaseModel, ConfigDict, Field

from infereval_env import verdicts
from infereval_env.elicitation import Frame, Prompt, Style, Template, Wording, askable, compose
from infereval_env.files import read_benchmark
from infereval_env.formats import Benchmark, Item, elicitation_hash, reference_hash
from infereval_env.labels import most_probable
from infereval_env.measures import ARITIES, consensus
from infereval_env.readings import cluster_of
from infereval_env.splits import Split, items_of
from infereval_env.verdicts import LABELS, VERDICTS, QuestionForm, Verdict

OUR_BENCHMARKS = ("garden", "kettle")
DATA_FILES = tuple(f"infereval/{name}/benchmark.json" for name in OUR_BENCHMARKS)
FORMAT_PENALTY = 1.0
"""What an unreadable reply costs under `quad`, beyond saying what no analyst said."""


class Settings(BaseModel):
    """The environment's arguments."""

    model_config = ConfigDict(extra="forbid")

    benchmark: str = "garden"
    """`garden`, `kettle`, or the path of a benchmark file."""
    forms: list[QuestionForm] = ["coherence"]
    """Question forms; support skips items that have not exactly one conclusion."""
    templates: list[Template] = ["plain-1"]
    frames: list[Frame] = ["glosses-1"]
    """Norms of the coherence question; support has none."""
    variants: list[int] = [0]
    """Paraphrases: 0 is each bearer's own expression."""
    reward: Literal["agree", "quad", "logprob"] = "agree"
    items: Literal["balanced", "all"] = "balanced"
    """`balanced`: where the consensus is good or bad, as many of either, so that a constant answer earns half.
    `all`: every item; where the panel is split, abstaining is what agrees."""
    split: Split = "all"
    """`train` and `test` share no ladder. Items of `train` get no κ."""
    train_share: float = Field(0.5, ge=0, le=1)
    seed: int = Field(0, ge=0)
    """Fixes the split and which items balance leaves out."""
    style: Style = "chat"
    """`chat` for instruction-tuned models, `completion` for base models."""

    @classmethod
    def parse(cls, arguments: Mapping[str, object]) -> Self:
        """The settings; raises `MindscopeError` that names every wrong argument and what is allowed."""
        return parse(cls, arguments, "The arguments of infereval_env")


class Trial(BaseModel):
    """One row. Only `system` and `user`, or `text` for a base model, may be shown to the model. An author's
    placeholder is not among the fields."""

    model_config = ConfigDict(frozen=True)

    index: int
    trcode: str
    """The item's id; the wordings of one item share it."""
    condition: str
    """Question form and arity."""
    benchmark: str
    elicitation_hash: str
    reference_hash: str
    form: QuestionForm
    template: str
    frame: str
    variant: int
    style: Style
    split: Split
    reward: Literal["agree", "quad", "logprob"]
    cluster: str
    target: Verdict
    """The consensus: abstain where as many analysts say good as bad."""
    panel: tuple[float, float, float]
    """Shares of the analysts who answered: good, bad, abstain."""
    system: str
    user: str
    text: str

    @property
    def prompt_parts(self) -> Prompt:
        return Prompt(self.system, self.user, self.text)

    @property
    def setup(self) -> str:
        """The wording's axes in one word."""
        return f"{self.form}:{self.template}:{self.frame}:{self.variant}"


class Score(BaseModel):
    """What one rollout was: its verdict, None when there is none to read, and what it earns by itself."""

    model_config = ConfigDict(frozen=True)

    verdict: Verdict | None
    reward: float
    agreement: float
    panel_share: float
    """Share of the panel that gave this verdict."""
    shares: dict[Verdict, float] | None = None

    def metrics(self) -> dict[str, float]:
        outcome = self.verdict or "unparseable"
        found = {f"outcome_{name}": float(name == outcome) for name in (*VERDICTS, "unparseable")}
        found |= {"agreement": self.agreement, "panel_share": self.panel_share}
        if self.shares is not None:
            found |= {f"q_{verdict}": share for verdict, share in self.shares.items()}
            found["label_mass"] = sum(self.shares.values())
        return found


def trials(settings: Settings) -> list[Trial]:
    """The rows, a pure function of the settings. Raises `MindscopeError` when the benchmark cannot be used."""
    benchmark = load_benchmark(settings.benchmark)
    shown, said = elicitation_hash(benchmark), reference_hash(benchmark)
    items = items_of(benchmark, settings.split, seed=settings.seed, train_share=settings.train_share)
    items = [item for item in items if any(verdict is not None for verdict in item.analyst_verdicts)]
    rows: list[Trial] = []
    for wording in _wordings(settings):
        askables = [item for item in items if askable(wording.form, item)]
        for item in _balanced(askables, settings.seed) if settings.items == "balanced" else askables:
            prompt = compose(wording, benchmark, item)
            rows.append(
                Trial(
                    index=len(rows),
                    trcode=item.id,
                    condition=f"{wording.form} {ARITIES[min(len(item.conclusions), 2)]}",
                    benchmark=settings.benchmark,
                    elicitation_hash=shown,
                    reference_hash=said,
                    form=wording.form,
                    template=wording.template_id,
                    frame=wording.frame_id,
                    variant=wording.variant,
                    style=settings.style,
                    split=settings.split,
                    reward=settings.reward,
                    cluster=cluster_of(item.id, item),
                    target=consensus(item.analyst_verdicts),
                    panel=_shares(item),
                    system=prompt.system,
                    user=prompt.user,
                    text=prompt.text,
                )
            )
    if not rows:
        raise MindscopeError(f"No item of benchmark {benchmark.id!r} is left to ask under these settings.")
    return rows


def score(trial: Trial, reply: str | None, finish_reason: str | None = None) -> Score:
    """What the reply to this trial was; its reward is that of `agree`. `reply` is the message's content, never its
    reasoning field."""
    verdict = read_verdict(trial, reply, finish_reason)
    agreement = float(verdict == trial.target)
    return Score(verdict=verdict, reward=agreement, agreement=agreement, panel_share=_share(trial, verdict))


def read_verdict(trial: Trial, reply: str | None, finish_reason: str | None = None) -> Verdict | None:
    """The verdict that a reply declares by the strict rule of `verdicts.parse`, None when it declares none."""
    first_line = (reply or "").partition("\n")[0] if trial.style == "completion" else reply or ""
    parsed = verdicts.parse(first_line, trial.form, finish_reason=finish_reason)
    return parsed.verdict if parsed.status == "ok" else None


def score_labels(trial: Trial, shares: Mapping[Verdict, float]) -> Score:
    """The proper score of label probabilities; raises ValueError unless they are probabilities."""
    q = [shares[verdict] for verdict in VERDICTS]
    if not all(0 <= share <= 1 for share in q) or sum(q) > 1 + 1e-6:
        raise ValueError(f"the label probabilities {dict(shares)} are not probabilities")
    outside = max(0.0, 1 - sum(q))
    distance = sum((share - p) ** 2 for share, p in zip(q, trial.panel, strict=True)) + outside**2
    verdict = most_probable(shares)
    return Score(
        verdict=verdict,
        reward=1 - distance / 2,
        agreement=float(verdict == trial.target),
        panel_share=_share(trial, verdict),
        shares=dict(shares),
    )


def quadratic(trial: Trial, group: Sequence[Verdict | None], *, factor: float = 2.0) -> list[float]:
    """The rewards of one row's rollouts, by their verdicts (None: unreadable).

    `factor=1` without the penalty is for reporting: its mean estimates 2 q·p - q·q without bias. Raises ValueError
    for fewer than two rollouts, as there is then nothing to compare with.
    """
    n = len(group)
    if n < 2:
        raise ValueError(f"the reward quad needs at least two answered rollouts of a row, found {n}")
    return [2 * _share(trial, verdict) - factor * (group.count(verdict) - 1) / (n - 1) for verdict in group]


def quad_rewards(trial: Trial, group: Sequence[Verdict | None]) -> list[float]:
    """What is trained on: `quadratic`, less the penalty for a reply without a verdict."""
    return [
        reward - (FORMAT_PENALTY if verdict is None else 0.0)
        for verdict, reward in zip(group, quadratic(trial, group), strict=True)
    ]


def gold_reply(trial: Trial) -> str:
    """The reply that agrees with the panel."""
    return next(label for label, verdict in LABELS[trial.form].items() if verdict == trial.target)


def load_benchmark(name: str) -> Benchmark:
    """One of our benchmarks by name, or the file at a path. Raises MindscopeError listing every fault."""
    return read_benchmark(data_path(f"infereval/{name}/benchmark.json") if name in OUR_BENCHMARKS else Path(name))


def _wordings(settings: Settings) -> list[Wording]:
    """Every wording once; frames are crossed with coherence only."""
    return [
        Wording(form=form, template=template, frame=frame, variant=variant, style=settings.style)
        for form in dict.fromkeys(settings.forms)
        for template in dict.fromkeys(settings.templates)
        for frame in (dict.fromkeys(settings.frames) if form == "coherence" else settings.frames[:1])
        for variant in dict.fromkeys(settings.variants)
    ]


def _balanced(items: Sequence[Item], seed: int) -> list[Item]:
    """The items with a consensus of good or bad, equally many, in their order; which stay is drawn by hash."""

    def drawn(item: Item) -> bytes:
        return hashlib.sha256(f"balance:{seed}:{item.id}".encode()).digest()

    sides = [[item for item in items if consensus(item.analyst_verdicts) == side] for side in ("good", "bad")]
    size = min(map(len, sides))
    kept = {item.id for side in sides for item in sorted(side, key=drawn)[:size]}
    return [item for item in items if item.id in kept]


def _shares(item: Item) -> tuple[float, float, float]:
    said = [verdict for verdict in item.analyst_verdicts if verdict is not None]
    good, bad, abstain = (said.count(verdict) / len(said) for verdict in VERDICTS)
    return good, bad, abstain


def _share(trial: Trial, verdict: Verdict | None) -> float:
    return 0.0 if verdict is None else trial.panel[VERDICTS.index(verdict)]
