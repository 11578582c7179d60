from collections.abc import Iterable

import verifiers.v1 as vf
from mindscope.frameworks.v1 import DirectHarness, LocalEnv, PromptData, finite, last_reply

from faulty_env.paradigm import Score, Settings, Trial, score, trials

__all__ = ("DirectHarness", "FaultyTaskset", "LocalEnv")


class FaultyData(Trial, PromptData):
    pass


class FaultyTask(vf.Task[FaultyData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return finite(self._score(trace).reward)

    def _score(self, trace: vf.Trace) -> Score:
        return score(self.data, last_reply(trace))


class FaultyTaskset(vf.Taskset[FaultyTask]):
    def load(self) -> Iterable[FaultyTask]:
        for trial in trials(Settings()):
            yield FaultyTask(FaultyData(**dict(trial), condition="only"), self.config.task)
