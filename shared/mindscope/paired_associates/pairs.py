"""The project's word pairs: cue, target and how alike the two are.

load_pairs()[0]       # WordPair(trcode="L0_01", level="L0", similarity=0.0, cue=…, target=…)
"""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from mindscope.stimuli import data_path, read_records


def one_word(text: str) -> str:
    """The text if it can stand in a prompt and be recalled; raises ValueError otherwise."""
    if text != text.strip() or len(text.splitlines()) != 1 or set(text) & set("<>"):
        raise ValueError("a word or phrase on one line, without < or > and without white space around it")
    if not any(character.isalnum() for character in text):
        raise ValueError("a word or phrase with at least one letter")
    return text


Word = Annotated[str, AfterValidator(one_word), Field(description="a word or phrase")]
Similarity = Annotated[float, Field(ge=0, le=1, description="a number from 0 to 1")]


class WordPair(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    trcode: str = Field(min_length=1, description="a name that no other pair has")
    level: str = Field(description="the level of the pair's similarity, such as L25")
    similarity: Similarity
    cue: Word
    target: Word

    @field_validator("similarity")
    @classmethod
    def _agrees_with_level(cls, similarity: float, info: ValidationInfo) -> float:
        level = info.data.get("level")
        if level is not None and level != level_of(similarity):
            raise ValueError(f"the similarity of level {level}")
        return similarity


def level_of(similarity: float) -> str:
    """The name of a similarity level: `level_of(0.25)` is `L25`."""
    return f"L{100 * similarity:g}"


def load_pairs(name: str = "pal50/pairs.jsonl") -> list[WordPair]:
    """The pairs of a file in `data/`, in file order; raises `StimulusError` that lists every fault."""
    return read_records(data_path(name), WordPair)
