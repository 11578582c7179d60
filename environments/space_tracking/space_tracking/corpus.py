"""The space-tracking corpus: what a row is, what makes it valid, and how to load it.

A prompt gives one entity a colour in each of two spaces (what somebody thinks and what is so, a painting and
its subject) and stops on a copula, so that the next token says which space the reader is in. Rows come in
pairs: the same context, byte for byte, continued by a query for either space.

    from space_tracking.corpus import load, load_distinct

    load()                            # the 1,910 rows the published tables count
    load("test")                      # nouns and names that no other part has, every template
    load("test", scheme="template")   # and, besides, only templates that "train" has not
    load_published()                  # the counts once published for another corpus of the same design

Stimuli: `data/space_tracking`, described in its README.md.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from mindscope.stimuli import data_path, loads, read_records, read_text, sha256
from mindscope.validation import parse
from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

COLOURS = ("blue", "green", "red", "brown", "yellow", "purple")
"""The open vocabulary. A four-colour construction uses the first four."""

COPULAS = ("is", "be")

FOLDER = "space_tracking"

Split = Literal["train", "dev", "test"]
Part = Literal["all", "train", "dev", "test"]
Scheme = Literal["entity", "template"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


@dataclass(frozen=True)
class Construction:
    name: str
    depths: dict[str, int]
    """The spaces, the marked one first, and how many spaces deep each lies below the narrator's own."""
    n_colours: int
    templates: dict[str, int]
    """Rows per template."""
    n_agents: int = 0
    distractor: Literal["none", "mirrored", "distinct"] = "none"
    """Mirrored: a second entity has the target's colours the other way round. Distinct: two of its own."""

    @property
    def spaces(self) -> tuple[str, ...]:
        return tuple(self.depths)

    @property
    def colours(self) -> tuple[str, ...]:
        return COLOURS[: self.n_colours]

    @property
    def n_values(self) -> int:
        """How many colours a forced choice is between; chance is one in so many."""
        return 4 if self.distractor == "distinct" else 2


CONSTRUCTIONS = (
    Construction(
        "single_space_control",
        {"reality": 0},
        6,
        {"single-space-a": 40, "single-space-b": 40, "single-space-c": 40},
    ),
    Construction(
        "belief_reality",
        {"belief": 1, "reality": 0},
        6,
        {"belief-thinks": 150, "belief-convinced": 150, "belief-believes": 150},
        n_agents=1,
    ),
    Construction(
        "counterfactual_or_alternative_space",
        {"alternative": 1, "reality": 0},
        4,
        {"cf-hypothetical": 100, "cf-painting": 100, "cf-story": 100, "cf-dream": 100, "cf-movie": 100},
    ),
    Construction(
        "nested_depictive",
        {"inner": 2, "outer": 1},
        4,
        {"nd-reflection-portrait": 120, "nd-photo-painting": 120, "nd-snapshot-sketch": 120},
    ),
    Construction(
        "two_entity_selectivity",
        {"image": 1, "reality": 0},
        4,
        {"te-painting": 80, "te-photo": 80, "te-drawing": 80},
        distractor="mirrored",
    ),
    Construction(
        "nested_belief",
        {"inner": 2, "outer": 1},
        4,
        {"nb-imagines-confirms": 80, "nb-assumes-sees": 80, "nb-thinks-knows": 80},
        n_agents=2,
    ),
)
"""The six published constructions in the published order, with the published counts: 1,910 rows."""

DISTINCT = Construction(
    "two_entity_distinct",
    {"image": 1, "reality": 0},
    4,
    {"te-painting-distinct": 80, "te-photo-distinct": 80, "te-drawing-distinct": 80},
    distractor="distinct",
)
"""Four values in play, so that an error says why. Chance is .25: these rows are not among the 1,910."""

BY_NAME = {construction.name: construction for construction in (*CONSTRUCTIONS, DISTINCT)}

HELD_OUT = frozenset(
    {
        "single-space-c",
        "belief-believes",
        "cf-movie",
        "nd-snapshot-sketch",
        "te-drawing",
        "nb-thinks-knows",
        "te-drawing-distinct",
    }
)
"""The template of each construction that the `template` scheme keeps for its test part."""

_COLOUR = re.compile(rf"\b({'|'.join(COLOURS)})\b")

Name = Annotated[str, Field(min_length=1)]


class Row(BaseModel):
    """One prompt and the truth about it, a line of a file. A row that contradicts itself can't be built."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Name
    pair_id: Name
    construction: Name
    template: Name
    split: Split
    prompt: Name
    answer: Name
    foil: Name
    query_space: Name
    space_value_map: dict[str, str]
    entity: Name
    distractor_entity: Name | None
    distractor_value_map: dict[str, str] | None
    mention_order: tuple[Name, ...]
    """The spaces in the order the context states them."""
    first_mentioned: Name
    last_mentioned: Name
    depth: StrictInt
    """How many spaces deep the answer lies below the narrator's own."""
    agents: tuple[Name, ...]
    """The people named: the believer, or the outer one before the inner one."""
    n_colours: StrictInt
    generator_version: Name
    seed: StrictInt

    @property
    def context(self) -> str:
        """All sentences but the last: what the two rows of a pair share."""
        return self.prompt[: self.prompt.rfind(".") + 1]

    @property
    def query(self) -> str:
        """The unfinished last sentence."""
        return self.prompt[len(self.context) :].strip()

    @property
    def mentions(self) -> tuple[str, ...]:
        """The colour words of the context, in order."""
        return tuple(_COLOUR.findall(self.context))

    @property
    def in_play(self) -> tuple[str, ...]:
        """What a forced choice is between, in `COLOURS` order: every colour of both maps, and the foil.

        The foil adds something only in the one-space control, where it is the pair partner's colour: without
        it the choice would be between one value, and the control could not fail.
        """
        values = {self.foil, *self.space_value_map.values(), *(self.distractor_value_map or {}).values()}
        return tuple(colour for colour in COLOURS if colour in values)

    @property
    def distractor_first(self) -> bool:
        """Whether the context names the distractor before the target."""
        if self.distractor_entity is None:
            return False
        return _place(self.context, self.distractor_entity) < _place(self.context, self.entity)

    @model_validator(mode="after")
    def _check(self) -> "Row":
        faults = row_faults(self)
        if faults:
            raise ValueError("; ".join(faults))
        return self


class Cell(BaseModel):
    """How many of `n` prompts each model got right."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n: StrictInt
    correct: dict[str, StrictInt]


class Published(BaseModel):
    """Counts published for another corpus of the same design: shown beside ours, never to be met by it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: Name
    source: Name
    measure: Name
    models: tuple[Name, ...]
    total: Cell
    constructions: dict[str, Cell]
    templates: dict[str, Cell]
    swap_rate: dict[str, float]
    """Of the two-entity rows, as published, by model."""


def load(part: Part = "all", scheme: Scheme = "entity") -> list[Row]:
    """The rows of a part of the 1,910; raises `StimulusError` with every fault of a file, each with its line.

    In the `entity` scheme no noun or name occurs in two parts, and every template does in all. In the
    `template` scheme, moreover, "test" has only the `HELD_OUT` templates and "train" and "dev" have only the
    others; rows that are neither belong to no part. "all" is every row in either scheme.
    """
    splits = SPLITS if part == "all" else (part,)
    rows = [row for split in splits for row in read(data_path(f"{FOLDER}/{split}.jsonl"))]
    return _in_scheme(rows, part, scheme)


def load_distinct(part: Part = "all", scheme: Scheme = "entity") -> list[Row]:
    """The rows of the four-value two-entity variant, parted like `load`."""
    rows = read(data_path(f"{FOLDER}/distinct.jsonl"))
    return _in_scheme([row for row in rows if part in ("all", row.split)], part, scheme)


def read(path: Path | str) -> list[Row]:
    """The rows of one file; raises `StimulusError` with every fault of the file, each with its line."""
    return read_records(path, Row)


def load_published() -> Published:
    """The reference counts; raises `MindscopeError` where the file is not as described by `Published`."""
    path = data_path(f"{FOLDER}/published.json")
    return parse(Published, loads(read_text(path)), subject=str(path))


def digests() -> dict[str, str]:
    """SHA-256 of each corpus file, by file name: what a run records about its data."""
    return {path.name: sha256(path) for path in sorted(data_path(FOLDER).glob("*.jsonl"))}


def _in_scheme(rows: list[Row], part: Part, scheme: Scheme) -> list[Row]:
    if scheme == "entity" or part == "all":
        return rows
    return [row for row in rows if (row.template in HELD_OUT) == (part == "test")]


def row_faults(row: Row) -> list[str]:
    """What a row should have and has not, by its construction and its text: phrases for "should have …"."""
    construction = BY_NAME.get(row.construction)
    if construction is None:
        return [f"a construction among {', '.join(BY_NAME)}, not {row.construction!r}"]
    faults = [*_identity_faults(row, construction), *_map_faults(row, construction)]
    if faults:
        return faults
    return [*_value_faults(row, construction), *_text_faults(row)]


def _identity_faults(row: Row, construction: Construction) -> Iterator[str]:
    if row.template not in construction.templates:
        yield f"a template of {construction.name} ({', '.join(construction.templates)}), not {row.template!r}"
    if not row.pair_id.startswith(f"{row.template}-"):
        yield f"a pair_id that starts with '{row.template}-', not {row.pair_id!r}"
    if not row.id.startswith(f"{row.pair_id}-"):
        yield f"an id that starts with '{row.pair_id}-', not {row.id!r}"
    if row.n_colours != construction.n_colours:
        yield f"n_colours {construction.n_colours}, not {row.n_colours}"
    if not len(set(row.agents)) == len(row.agents) == construction.n_agents:
        yield f"{construction.n_agents} different agents, not {list(row.agents)}"


def _map_faults(row: Row, construction: Construction) -> Iterator[str]:
    spaces = construction.spaces
    if set(row.space_value_map) != set(spaces):
        yield f"a space_value_map of {' and '.join(spaces)}, not of {' and '.join(row.space_value_map)}"
    if sorted(row.mention_order) != sorted(spaces):
        yield f"a mention_order of {' and '.join(spaces)}, not of {' and '.join(row.mention_order)}"
    if row.query_space not in spaces:
        yield f"a query_space among {' and '.join(spaces)}, not {row.query_space!r}"
    if construction.distractor == "none":
        if row.distractor_entity is not None or row.distractor_value_map is not None:
            yield "no distractor"
    elif row.distractor_entity in (None, row.entity) or set(row.distractor_value_map or {}) != set(spaces):
        yield f"a distractor other than the target, with a distractor_value_map of {' and '.join(spaces)}"


def _value_faults(row: Row, construction: Construction) -> Iterator[str]:
    values = row.space_value_map
    others = {colour for space, colour in values.items() if space != row.query_space}
    if row.depth != construction.depths[row.query_space]:
        yield f"depth {construction.depths[row.query_space]} (of {row.query_space}), not {row.depth}"
    if row.answer != values[row.query_space]:
        yield f"answer {values[row.query_space]!r} (the {row.query_space} colour), not {row.answer!r}"
    if len(set(values.values())) != len(values):
        yield f"a different colour in each space, not {values[row.query_space]!r} in both"
    if row.foil == row.answer or (others and row.foil not in others):
        yield f"a foil that is the colour of the space not asked about, not {row.foil!r}"

    distractor = row.distractor_value_map or {}
    swapped = dict(zip(values, reversed(values.values()), strict=True))
    if construction.distractor == "mirrored" and distractor != swapped:
        yield f"a distractor_value_map that swaps the target's colours, {swapped}, not {distractor}"
    if construction.distractor == "distinct" and len({*values.values(), *distractor.values()}) != 4:
        yield "four different colours in its two maps"
    unknown = {row.foil, *values.values(), *distractor.values()} - set(construction.colours)
    if unknown:
        yield f"colours among {', '.join(construction.colours)}, not {', '.join(sorted(unknown))}"


def _text_faults(row: Row) -> Iterator[str]:
    if " ".join(row.prompt.split()) != row.prompt:
        yield "a prompt with one space between words and none at its ends"
    if row.prompt.rpartition(" ")[2] not in COPULAS:
        yield f"a prompt that ends on a copula ({' or '.join(COPULAS)})"
    if not row.context:
        yield "a context sentence before the query"
    if _place(row.query, row.entity) < 0:
        yield f"its entity, {row.entity!r}, in the query"
    for name in (row.entity, *row.agents, *filter(None, [row.distractor_entity])):
        if _place(row.context, name) < 0:
            yield f"{name!r} in the context"
    if _COLOUR.search(row.query):
        yield "no colour in the query"
    if (row.first_mentioned, row.last_mentioned) != row.mentions[:1] + row.mentions[-1:]:
        yield "first_mentioned and last_mentioned as the context has them"
    if row.mentions != _stated(row):
        yield f"a context that mentions {', '.join(_stated(row))}, in order (by its maps and mention_order)"


def _stated(row: Row) -> tuple[str, ...]:
    """The colours that the fields say the context mentions, in order."""
    maps = [row.space_value_map]
    if row.distractor_value_map is not None:
        maps.insert(0 if row.distractor_first else 1, row.distractor_value_map)
    return tuple(values[space] for space in row.mention_order for values in maps)


def _place(text: str, word: str) -> int:
    """Where `text` first has `word` as a whole word, or -1."""
    found = re.search(rf"\b{re.escape(word)}\b", text)
    return found.start() if found else -1
