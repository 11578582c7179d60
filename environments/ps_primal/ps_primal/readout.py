"""ps_primal read out of the weights: how probable the studied word is, with the pair studied and without.

No endpoint and no sampling: the completion-style prompts are given to a local model, and the log-probability of the
target is summed over its tokens. `first` is the share of items whose target starts with the model's most probable
next token. The gain is the log-probability with the pair studied minus without, item by item.

    mindscope score ps_primal --model embedded
"""

from collections.abc import Callable, Mapping, Sequence

from mindscope.errors import MindscopeError
from mindscope.report.text import interval_text, table, value_text
from mindscope.statistics import Estimate, mean_interval
from pydantic import BaseModel, ConfigDict

from ps_primal.paradigm import Settings, Trial, trials

ALL = "all"


class LevelReadout(BaseModel):
    """One level of similarity, or all of them. Log-probabilities in nats."""

    model_config = ConfigDict(frozen=True)

    level: str
    first_studied: Estimate
    first_control: Estimate
    logprob_studied: Estimate
    logprob_control: Estimate
    gain: Estimate


class Readout(BaseModel):
    model_config = ConfigDict(frozen=True)

    model: str
    levels: tuple[LevelReadout, ...]

    def to_json(self) -> str:
        return self.model_dump_json(indent=2)

    def format_text(self) -> str:
        title = f"ps_primal read out of {self.model}: the target after the prompt, with the pair studied and with none"
        header = ["level", "n", "first, studied", "first, control", "gain in nats"]
        rows = []
        for row in self.levels:
            estimates = (row.first_studied, row.first_control, row.gain)
            shown = [f"{value_text(each.value)} {interval_text(each)}" for each in estimates]
            rows.append([row.level, str(row.gain.n), *shown])
        note = "95 % intervals: Wilson for shares, bootstrap over items for the gain"
        return "\n".join([title, table(header, rows), note])


def score(
    model: str,
    *,
    batch_size: int,
    env_args: Mapping[str, object],
    progress: Callable[[int, int], None] | None = None,
) -> Readout:
    """Read every trial of `env_args` out of the model at `model`, a hub id, a folder or "embedded".

    Raises MindscopeError when the arguments set `style` or `study`, which this readout sets itself, or when the
    model cannot be loaded.
    """
    from mindscope.whitebox.model import LocalModel
    from mindscope.whitebox.scoring import score_continuations

    if taken := sorted({"style", "study"} & set(env_args)):
        raise MindscopeError(f"the readout runs every item studied and not, in completion style; leave out {taken}")
    studied, control = (
        trials(Settings.parse({**env_args, "style": "completion", "study": study})) for study in ("pair", "none")
    )
    rows = [*studied, *control]
    scores = score_continuations(
        LocalModel.load(model),
        [trial.prompt for trial in rows],
        [trial.target for trial in rows],
        batch_size=batch_size,
        progress=progress,
    )
    first = [float(score.first_is_top) for score in scores]
    logprobs = [score.logprob for score in scores]
    n = len(studied)
    levels = [*dict.fromkeys(trial.level for trial in studied), ALL]
    return Readout(
        model=model,
        levels=tuple(_level(level, studied, first[:n], first[n:], logprobs[:n], logprobs[n:]) for level in levels),
    )


def _level(
    level: str,
    items: Sequence[Trial],
    first_studied: Sequence[float],
    first_control: Sequence[float],
    studied: Sequence[float],
    control: Sequence[float],
) -> LevelReadout:
    rows = [row for row, item in enumerate(items) if level in (ALL, item.level)]
    codes = [items[row].trcode for row in rows]

    def mean(values: Sequence[float]) -> Estimate:
        return mean_interval([values[row] for row in rows], codes)

    return LevelReadout(
        level=level,
        first_studied=mean(first_studied),
        first_control=mean(first_control),
        logprob_studied=mean(studied),
        logprob_control=mean(control),
        gain=mean([with_pair - without for with_pair, without in zip(studied, control, strict=True)]),
    )
