"""Write the space-tracking corpus. Deterministic: the same bytes on every run and every machine.

    python data/space_tracking/generate.py           # rewrite the JSONL files and SHA256SUMS beside this file
    python data/space_tracking/generate.py --check   # say whether the files are what this generator makes

How the balance is made. The colours of a construction are paired off, round after round, so that all are used
equally. A pair of colours {x, y} makes a *unit*: two contexts about the same thing and people, in which the
colours change spaces and the spaces change places,

    Mara thinks the kite is x. The kite is really y.        (belief x, reality y, belief first)
    The kite is really x. Mara thinks the kite is y.        (belief y, reality x, reality first)

each continued by a query for either space: four rows. Within the four every query has either colour as its
answer once, either space is told first once, and what stands at a given place in the text is right half of
the time. Where a template's rows are not a multiple of four, its last units in "train" are halved: one
context only, the spaces' places changing from unit to unit and from template to template.
Needs the `space_tracking` package, whose `Row` refuses to hold an inconsistent row.
"""

import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from space_tracking.corpus import CONSTRUCTIONS, DISTINCT, SPLITS, Construction, Row, Split

VERSION = "1.0.0"
SEED = 0
HERE = Path(__file__).resolve().parent

PORTABLE: dict[Split, str] = {
    "train": "scarf lantern bowl mug umbrella cushion teapot notebook lamp hat towel purse helmet doll plate "
    "drum mitten flask satchel jumper apron clock ribbon puppet",
    "dev": "vase blanket kettle backpack tray glove radio ornament",
    "test": "kite jug cap pillow ball folder saucer handbag quilt lunchbox album bracelet",
}
"""Things to put on a shelf or in a parcel. None has a usual colour."""

OUTDOOR: dict[Split, str] = {
    "train": "gate door canoe caravan birdhouse bicycle cart kiosk trailer swing wheelbarrow signpost bridge "
    "hut shutter balcony",
    "dev": "bandstand dinghy staircase scooter archway",
    "test": "railing rowboat windmill cottage gazebo seesaw carousel",
}
"""Things one paints."""

WOMEN: dict[Split, str] = {
    "train": "Amara Ingrid Mei Priya Fatima Chloe Zainab Sofia Ewa Thandi Elena Keiko",
    "dev": "Leila Marta Ngozi Hana",
    "test": "Nadia Anjali Freya Aiko Colette Ayesha",
}
MEN: dict[Split, str] = {
    "train": "Omar Kwame Hiroshi Pavel Diego Raj Lars Chidi Tomas Jamal Felix Arjun",
    "dev": "Ibrahim Marek Kenji Mateo",
    "test": "Sven Tariq Nikhil Oscar Idris Emil",
}


@dataclass(frozen=True)
class Wording:
    """The sentences of a template, with slots.

    {n} is the entity, {an_n} the same with its article; {A} and {B} are the people, the outer one first; {c1}
    and {c2} the colours in the first and in the second space. A two-entity context has {x} and {y}, the
    entities in the order it names them, and their colours in either space: {x1} {y1} {x2} {y2}.
    """

    contexts: tuple[str, ...]
    """The first space told first; the second space told first. The one-space control has one."""
    queries: tuple[str, ...]
    """One per space. The two overlap with each clause of the context in as many words as each other."""
    nouns: dict[Split, str] = field(default_factory=lambda: PORTABLE)


WORDINGS = {
    "single-space-a": Wording(
        ("The {n} on the porch is {c1}.",),
        ("So the colour of the {n} is",),
    ),
    "single-space-b": Wording(
        ("Somebody has left a {c1} {n} on the bench.",),
        ("The {n} on the bench is",),
    ),
    "single-space-c": Wording(
        ("We went to the market for {an_n} and chose one that is {c1}.",),
        ("What we have brought home is {an_n} whose colour is",),
    ),
    "belief-thinks": Wording(
        (
            "{A} thinks the {n} on the top shelf is {c1}. The {n} on the top shelf is really {c2}.",
            "The {n} on the top shelf is really {c2}. {A} thinks the {n} on the top shelf is {c1}.",
        ),
        ("In {A}'s opinion, the {n} is", "Unknown to {A}, the {n} is"),
    ),
    "belief-convinced": Wording(
        (
            "{A} is convinced that the {n} in the parcel is {c1}, although it is truly {c2}.",
            "The {n} in the parcel is truly {c2}, although {A} is convinced that it is {c1}.",
        ),
        ("By {A}'s account, the {n} is", "Despite {A}'s certainty, the {n} is"),
    ),
    "belief-believes": Wording(
        (
            "On hearsay alone, {A} believes the {n} is {c1}. Out on the window sill, the {n} is {c2}.",
            "Out on the window sill, the {n} is {c2}. On hearsay alone, {A} believes the {n} is {c1}.",
        ),
        ("{A} would swear that the {n} is", "One look would show {A} that the {n} is"),
    ),
    "cf-hypothetical": Wording(
        (
            "The other tin of paint would have turned our {n} {c1}; the tin we opened has turned it {c2}.",
            "The tin of paint we opened has turned our {n} {c2}; the other tin would have turned it {c1}.",
        ),
        ("Had we chosen differently, the {n} would be", "Given what we chose, the {n} is"),
        OUTDOOR,
    ),
    "cf-painting": Wording(
        (
            "In the painting above the fireplace, the {n} is {c1}. The {n} that the artist copied is {c2}.",
            "The {n} that the artist copied is {c2}. In the painting above the fireplace, the {n} is {c1}.",
        ),
        ("Inside the picture frame, the {n} is", "Beyond the picture frame, the {n} is"),
        OUTDOOR,
    ),
    "cf-story": Wording(
        (
            "A story in the paper describes the {n} on our dresser as {c1}. "
            "Anyone who drops in can see that it is {c2}.",
            "Anyone who drops in can see that the {n} on our dresser is {c2}. "
            "A story in the paper describes it as {c1}.",
        ),
        ("Readers learn that the {n} is", "Guests learn that the {n} is"),
    ),
    "cf-dream": Wording(
        (
            "In a dream that keeps coming back, my {n} is {c1}, yet every morning I find that it is {c2}.",
            "Every morning I find that my {n} is {c2}, yet in a dream that keeps coming back it is {c1}.",
        ),
        ("To my sleeping self, the {n} is", "To my waking self, the {n} is"),
    ),
    "cf-movie": Wording(
        (
            "In the film the family own {an_n} that is {c1}, whereas the {n} they own in real life is {c2}.",
            "In real life the family own {an_n} that is {c2}, whereas the {n} they own in the film is {c1}.",
        ),
        ("On screen, the {n} is", "Off screen, the {n} is"),
    ),
    "nd-reflection-portrait": Wording(
        (
            "The mirror shows a hall with a portrait on its wall. "
            "In the glass, the {n} at the sitter's feet is {c1}, while the {n} under the frame is {c2}.",
            "The mirror shows a hall with a portrait on its wall. "
            "In the glass, the {n} under the frame is {c2}, while the {n} at the sitter's feet is {c1}.",
        ),
        ("In the reflected portrait, the {n} is", "In the reflected hall itself, the {n} is"),
    ),
    "nd-photo-painting": Wording(
        (
            "The photo on the desk shows a painting in which the {n} is {c1}, "
            "and around it a study in which the {n} is {c2}.",
            "The photo on the desk shows a study in which the {n} is {c2}, "
            "and within it a painting in which the {n} is {c1}.",
        ),
        ("In the photo, inside the painting, the {n} is", "In the photo, outside the painting, the {n} is"),
    ),
    "nd-snapshot-sketch": Wording(
        (
            "In the snapshot, an easel holds a sketch that colours the {n} {c1}; the {n} beside the easel is {c2}.",
            "In the snapshot, an easel stands beside {an_n} that is {c2}; the sketch it holds colours the {n} {c1}.",
        ),
        ("On the sketched page, the {n} is", "Next to the sketched page, the {n} is"),
    ),
    "te-painting": Wording(
        (
            "In the painting, the {x} is {x1} and the {y} is {y1}. "
            "In the artist's studio, the {x} is {x2} and the {y} is {y2}.",
            "In the artist's studio, the {x} is {x2} and the {y} is {y2}. "
            "In the painting, the {x} is {x1} and the {y} is {y1}.",
        ),
        ("On the canvas, the {n} is", "Off the canvas, the {n} is"),
    ),
    "te-photo": Wording(
        (
            "The photo has been hand-tinted, so it shows the {x} as {x1} and the {y} as {y1}. "
            "Up in the attic, the {x} is {x2} and the {y} is {y2}.",
            "Up in the attic, the {x} is {x2} and the {y} is {y2}. "
            "The photo has been hand-tinted, so it shows the {x} as {x1} and the {y} as {y1}.",
        ),
        ("Going by the photo, the {n} is", "Leaving the photo aside, the {n} is"),
    ),
    "te-drawing": Wording(
        (
            "The child's drawing makes the {x} {x1} and the {y} {y1}; "
            "the {x} on the table is {x2}, and the {y} beside it is {y2}.",
            "The {x} on the table is {x2}, and the {y} beside it is {y2}; "
            "the child's drawing makes the {x} {x1} and the {y} {y1}.",
        ),
        ("In crayon, the {n} is", "In reality, the {n} is"),
    ),
    "nb-imagines-confirms": Wording(
        (
            "{B}, who is waiting at the foot of the stairs, imagines that the {n} in the attic is {c1}. "
            "After a talk with {B}, {A} goes up and confirms that it is {c2}.",
            "After a talk with {B}, {A} goes up and confirms that the {n} in the attic is {c2}. "
            "{B}, who is waiting at the foot of the stairs, imagines that it is {c1}.",
        ),
        (
            "Asked to quote {B}, {A} would answer that the {n} is",
            "Asked to correct {B}, {A} would answer that the {n} is",
        ),
    ),
    "nb-assumes-sees": Wording(
        (
            "Judging by the label on the outside, {B} assumes that the {n} in the crate is {c1}. "
            "Told of {B}'s idea, {A} lifts the lid and sees that it is {c2}.",
            "Told of {B}'s idea, {A} lifts the lid and sees that the {n} in the crate is {c2}. "
            "Judging by the label on the outside, {B} assumes that it is {c1}.",
        ),
        ("By {A}'s reckoning, {B} expects the {n} to be", "By {A}'s reckoning, {B} will find the {n} to be"),
    ),
    "nb-thinks-knows": Wording(
        (
            "{B} thinks the {n} in the basket is {c1}. {A} knows it is {c2} and is well aware of {B}'s mistake.",
            "{A} knows the {n} in the basket is {c2}. {B} thinks it is {c1}, a mistake of which {A} is well aware.",
        ),
        ("{A} realises that {B} believes the {n} is", "{A}, unlike {B}, realises that the {n} is"),
    ),
}

UNITS: dict[str, dict[Split, int]] = {
    "single_space_control": {"train": 12, "dev": 4, "test": 4},
    "belief_reality": {"train": 24, "dev": 6, "test": 9},
    "counterfactual_or_alternative_space": {"train": 16, "dev": 4, "test": 6},
    "nested_depictive": {"train": 18, "dev": 6, "test": 6},
    "two_entity_selectivity": {"train": 12, "dev": 4, "test": 4},
    "nested_belief": {"train": 12, "dev": 4, "test": 4},
    "two_entity_distinct": {"train": 6, "dev": 2, "test": 2},
}
"""Per template. A unit is two pairs of rows; in the control it is one, in the four-value variant four."""

HALVED = {"belief_reality": 3, "counterfactual_or_alternative_space": 2}
"""How many of a template's units in "train" have one context only."""

GENDERS = {0: ("",), 1: ("f", "m"), 2: ("fm", "mf", "ff", "mm")}
"""By the number of people in a context: their genders, which take turns."""


@dataclass(frozen=True)
class Scene:
    """A context before it is worded."""

    colours: tuple[str, ...]
    """Of the target in the first and in the second space, then of the distractor likewise, if there is one.
    In the control, which has one space, of either row of the pair."""
    order: int = 0
    """1 when the second space is told first."""
    distractor_first: bool = False


class Cast:
    """Hands out the nouns and names of one split, the least used first, so that all serve about equally."""

    def __init__(self, split: Split) -> None:
        self.women, self.men = WOMEN[split].split(), MEN[split].split()
        self.used: Counter[str] = Counter()

    def take(self, words: Sequence[str], n: int, rng: random.Random) -> list[str]:
        """`n` different words, the least used ones, in random order."""
        if n > len(words):
            raise ValueError(f"{n} different words wanted, but there are {len(words)}: {', '.join(words)}")
        taken = sorted(rng.sample(words, len(words)), key=self.used.__getitem__)[:n]
        self.used.update(taken)
        return rng.sample(taken, n)

    def people(self, groups: Sequence[str], rng: random.Random) -> list[tuple[str, ...]]:
        """For each group of genders ("f", "mf") that many people, nobody twice."""
        genders = "".join(groups)
        women = self.take(self.women, genders.count("f"), rng)
        men = self.take(self.men, genders.count("m"), rng)
        return [tuple(women.pop() if gender == "f" else men.pop() for gender in group) for group in groups]


def rows(construction: Construction, casts: dict[Split, Cast]) -> Iterator[Row]:
    """The rows of a construction, template by template."""
    stream = units(construction)
    genders = GENDERS[construction.n_agents]
    n_entities = 1 if construction.distractor == "none" else 2
    for turn, template in enumerate(construction.templates):
        rng = random.Random(f"{SEED} {template}")
        pool = WORDINGS[template.removesuffix("-distinct")].nouns
        number = 0
        for split in SPLITS:
            n = UNITS[construction.name][split]
            halved = HALVED.get(construction.name, 0) if split == "train" else 0
            nouns = casts[split].take(pool[split].split(), n * n_entities, rng)
            people = casts[split].people([genders[(i + turn) % len(genders)] for i in range(n)], rng)
            for i in range(n):
                scenes = next(stream)
                if i >= n - halved:
                    scenes = [scenes[(i + turn) % 2]]
                for scene in scenes:
                    pair_id = f"{template}-{number:03d}"
                    yield from pair(construction, template, split, pair_id, scene, nouns[i::n], people[i])
                    number += 1


def units(construction: Construction) -> Iterator[list[Scene]]:
    """Without end: the scenes of unit after unit."""
    if construction.distractor == "distinct":
        yield from units_of_four(construction.colours)
    for number, (x, y) in enumerate(pairs_of_colours(construction.colours)):
        if len(construction.spaces) == 1:
            yield [Scene((x, y))]
        elif construction.distractor == "none":
            yield [Scene((x, y), 0), Scene((y, x), 1)]
        else:
            # Whichever entity is told first has x in the space that is told first.
            if (number // 2 + number) % 2 == 0:
                yield [Scene((x, y, y, x), 0), Scene((y, x, x, y), 1)]
            else:
                yield [Scene((y, x, x, y), 0, True), Scene((x, y, y, x), 1, True)]


def pairs_of_colours(colours: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Without end: the rounds of a round-robin tournament, then the same with each pair turned about."""
    fixed, *ring = colours
    turned = False
    while True:
        for _ in ring:
            circle = [fixed, *ring]
            for x, y in zip(circle[: len(circle) // 2], reversed(circle), strict=False):
                yield (y, x) if turned else (x, y)
            ring = [*ring[1:], ring[0]]
        turned = not turned


def units_of_four(colours: Sequence[str]) -> Iterator[list[Scene]]:
    """Without end: four scenes in which either entity has each of four colours once in each space."""
    rests = ((1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2), (2, 1, 3), (3, 2, 1))
    for number in count():
        first = number + number // 12
        a, b, c, d = (colours[(first + step) % 4] for step in (0, *rests[number % 6]))
        yield [
            Scene((a, b, c, d), 0),
            Scene((b, a, d, c), 1),
            Scene((c, d, a, b), 0, distractor_first=True),
            Scene((d, c, b, a), 1, distractor_first=True),
        ]


def pair(
    construction: Construction,
    template: str,
    split: Split,
    pair_id: str,
    scene: Scene,
    nouns: Sequence[str],
    people: tuple[str, ...],
) -> Iterator[Row]:
    """A scene's two rows: one context, a query for each space; in the control a row for each colour."""
    wording = WORDINGS[template.removesuffix("-distinct")]
    spaces = construction.spaces
    control = len(spaces) == 1
    target, distractor = scene.colours[:2], scene.colours[2:]
    for i, (answer, foil) in enumerate((target, target[::-1])):
        space, query = (spaces[0], wording.queries[0]) if control else (spaces[i], wording.queries[i])
        values = {space: answer} if control else dict(zip(spaces, target, strict=True))
        slots = filled_slots(scene, values, nouns, people)
        context = wording.contexts[scene.order].format(**slots)
        mentions = Row.model_construct(prompt=context).mentions
        yield Row(
            id=f"{pair_id}-{answer if control else space}",
            pair_id=pair_id,
            construction=construction.name,
            template=template,
            split=split,
            prompt=f"{context} {query.format(**slots)}",
            answer=answer,
            foil=foil,
            query_space=space,
            space_value_map=values,
            entity=nouns[0],
            distractor_entity=nouns[1] if distractor else None,
            distractor_value_map=dict(zip(spaces, distractor, strict=True)) if distractor else None,
            mention_order=spaces[::-1] if scene.order else spaces,
            first_mentioned=mentions[0],
            last_mentioned=mentions[-1],
            depth=construction.depths[space],
            agents=people,
            n_colours=construction.n_colours,
            generator_version=VERSION,
            seed=SEED,
        )


def filled_slots(scene: Scene, values: dict[str, str], nouns: Sequence[str], people: tuple[str, ...]) -> dict[str, str]:
    """What goes into the slots of a `Wording`."""
    slots = {"n": nouns[0], "an_n": with_article(nouns[0])}
    slots |= dict(zip("AB", people, strict=False)) | dict(zip(("c1", "c2"), values.values(), strict=False))
    if len(nouns) == 2:
        told = [(nouns[0], scene.colours[:2]), (nouns[1], scene.colours[2:])]
        if scene.distractor_first:
            told.reverse()
        for letter, (noun, (first, second)) in zip("xy", told, strict=True):
            slots |= {letter: noun, f"{letter}1": first, f"{letter}2": second}
    return slots


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def files() -> dict[str, bytes]:
    """The corpus, as the bytes of each file by its name."""
    casts = {split: Cast(split) for split in SPLITS}
    corpus = [row for construction in CONSTRUCTIONS for row in rows(construction, casts)]
    distinct = list(rows(DISTINCT, {split: Cast(split) for split in SPLITS}))
    parts = {f"{split}.jsonl": [row for row in corpus if row.split == split] for split in SPLITS}
    contents = {name: jsonl(part) for name, part in (parts | {"distinct.jsonl": distinct}).items()}
    sums = "".join(f"{hashlib.sha256(contents[name]).hexdigest()}  {name}\n" for name in sorted(contents))
    return contents | {"SHA256SUMS": sums.encode()}


def jsonl(part: Sequence[Row]) -> bytes:
    return "".join(f"{json.dumps(row.model_dump())}\n" for row in part).encode()


def main(arguments: Sequence[str]) -> int:
    contents = files()
    if arguments == ["--check"]:
        found = {path.name: path.read_bytes() for path in HERE.iterdir() if path.name in contents}
        stale = [name for name, content in contents.items() if found.get(name) != content]
        print(f"not what generate.py makes: {', '.join(stale)}" if stale else "all files are what generate.py makes")
        return 1 if stale else 0
    if arguments:
        print(__doc__)
        return 2
    for name, content in contents.items():
        (HERE / name).write_bytes(content)
        print(f"{name}: {len(content):,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
