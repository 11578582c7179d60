import math
from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict

RAISES, NOT_A_NUMBER = "raises", "nan"


class Settings(BaseModel):
    @classmethod
    def parse(cls, arguments: Mapping[str, object]) -> Self:
        return cls.model_validate(arguments)


class Trial(BaseModel):
    model_config = ConfigDict(frozen=True)

    trcode: str
    prompt: str


class Score(BaseModel):
    reward: float

    def metrics(self) -> dict[str, float]:
        return {"outcome_correct": self.reward}


def trials(settings: Settings) -> list[Trial]:
    names = ["right", "wrong", RAISES, NOT_A_NUMBER]
    return [Trial(trcode=name, prompt=f"item {name}") for name in names]


def score(trial: Trial, reply: str | None) -> Score:
    if trial.trcode == RAISES:
        raise ZeroDivisionError("the scorer is broken")
    if trial.trcode == NOT_A_NUMBER:
        return Score(reward=math.nan)
    return Score(reward=float(trial.trcode == reply))
