"""ps_primal for verifiers v1: `eval ps-primal` (0.3.1), `vf-eval ps-primal` (0.4), prime-rl."""

from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf
from mindscope.frameworks.v1 import DirectHarness, LocalEnv, PromptData, finite, last_finish_reason, last_reply

from ps_primal.paradigm import MAX_TOKENS, STOP, Score, Settings, Trial, gold_reply, score, trials

__all__ = ("DirectHarness", "LocalEnv", "PsPrimalTaskset")


class PsPrimalConfig(vf.TasksetConfig, Settings):
    """The paradigm's own arguments, under `--env.taskset.*`."""


class PsPrimalData(Trial, PromptData):
    """A trial, and how its prompt is sent."""


class PsPrimalTask(vf.Task[PsPrimalData]):
    @vf.reward
    async def recall_correct(self, trace: vf.Trace) -> float:
        return finite(self._score(trace).reward)

    @vf.metric
    async def outcomes(self, trace: vf.Trace) -> dict[str, float]:
        return self._score(trace).metrics()

    async def validate(self, runtime: vf.Runtime) -> bool:
        return score(self.data, gold_reply(self.data)).reward == 1.0 and score(self.data, "").reward == 0.0

    def _score(self, trace: vf.Trace) -> Score:
        return score(self.data, last_reply(trace), last_finish_reason(trace))


class PsPrimalTaskset(vf.Taskset[PsPrimalTask, PsPrimalConfig]):
    def load(self) -> Iterable[PsPrimalTask]:
        raw = self.config.style == "completion"
        sending: dict[str, Any] = {"raw": True, "stop": STOP, "max_tokens": MAX_TOKENS} if raw else {}
        for trial in trials(self.config):
            data = {**dict(trial), **sending, "condition": trial.level}
            yield PsPrimalTask(PsPrimalData(**data), self.config.task)
