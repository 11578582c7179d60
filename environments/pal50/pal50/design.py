"""What one participant studies and is asked, in which order: a pure function of the settings and a number.

    for design in designs(Settings.parse({"n_pairs": 20, "participants": 5})): ...

- The list is the same for all participants of a seed. Its pairs fall into five groups with the levels spread evenly
  over them, and participant i studies group g in fifth (g + i) of the list: over five participants every pair stands
  once in every fifth, and similarity is never confounded with list position.
- The test order is drawn on its own, then amended by as few swaps as it takes so that no lag is below the minimum and
  every level of every list has the same mean lag. Lags are whole numbers, so their sums over levels of equal size
  are equal where the total can be divided evenly, and differ by one at most where it cannot.
- A re-paired word (lists AC and ABr, earlier targets of an updated cue, `study="repaired"`) changes partners within its
  level. A row's level is that of the pair its first word comes from.
- With `order="card"` and a task card, study and test follow the card turn by turn.
"""

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from mindscope.answers import folded
from mindscope.errors import MindscopeError
from mindscope.paired_associates.cards import CardTrial, PairTrial, TaskCard, load_card
from mindscope.paired_associates.pairs import WordPair, level_of, load_pairs
from mindscope.stimuli import read_records
from pydantic import BaseModel, ConfigDict, Field

from pal50.settings import LEVELS, Direction, Settings

FIFTIES = "pal50/pairs.jsonl"
POOL = "pal50/pool.jsonl"

_DEFAULT_MIN_LAG = 5
_ATTEMPTS = 2000
_SWAPS = 200


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Pair(_Frozen):
    """Two words that belong together in one list."""

    trcode: str
    list: str
    level: str
    similarity: float
    first: str
    second: str
    direction: Direction = "forward"
    scored: bool = True

    @property
    def cue(self) -> str:
        return self.first if self.direction == "forward" else self.second

    @property
    def target(self) -> str:
        return self.second if self.direction == "forward" else self.first


class StudyStep(_Frozen):
    kind: Literal["study"] = "study"
    cycle: int
    pairs: tuple[int, ...]
    """Places in `Design.pairs`, one or a block of them."""
    stimulus: str | None = None
    """The card's own text, when it is replayed."""


class SumStep(_Frozen):
    kind: Literal["sum"] = "sum"
    cycle: int
    addends: tuple[int, int]


class TestStep(_Frozen):
    __test__ = False  # not a test class, whatever pytest makes of its name

    kind: Literal["test"] = "test"
    cycle: int
    pair: int
    stimulus: str | None = None


Step = Annotated[StudyStep | SumStep | TestStep, Field(discriminator="kind")]


class Design(_Frozen):
    """One participant's session. With the replies it is all that scoring needs, and it travels with the row."""

    participant: int
    settings: Settings
    pairs: tuple[Pair, ...]
    """Of every list, and of an updated cue the replaced ones too."""
    steps: tuple[Step, ...]
    system: str | None = None
    """The system message, when a card is replayed."""
    associates: dict[str, tuple[str, ...]] = {}
    """Words that the norms give for a cue of this session, by the cue as compared (`folded`)."""


class Associate(_Frozen):
    """One row of the norms."""

    cue: str
    associate: str


def designs(settings: Settings) -> list[Design]:
    """The session of every participant.

    Raises `MindscopeError` when arguments contradict each other, or the task card or the norms cannot be used.
    """
    settings.require_consistency()
    words = _words(settings)
    return [_design(settings, words, participant) for participant in range(settings.participants)]


# ---- the words, the same for all participants ----


class _Words(NamedTuple):
    listed: list[WordPair]
    """The pairs of list AB."""
    fillers: list[WordPair]
    """Pairs of a card that are studied and never tested."""
    spare: dict[str, list[WordPair]]
    """By level, pool pairs that share no word with the list, in random order."""
    card: TaskCard | None
    associates: dict[str, list[str]]


def _words(settings: Settings) -> _Words:
    associates: dict[str, list[str]] = defaultdict(list)
    if settings.norms is not None:
        for row in read_records(Path(settings.norms).expanduser(), Associate):
            associates[folded(row.cue)].append(row.associate)
    if settings.task_card is not None:
        card = load_card(settings.task_card)
        return _Words(card.pairs(), _fillers(card), {}, card, associates)
    rng = _random(settings, "list")
    own = settings.list_length // LEVELS
    listed = [
        pair
        for pairs in _by_level(load_pairs(FIFTIES if settings.list_length <= 50 else POOL)).values()
        for pair in (pairs[place] for place in sorted(rng.sample(range(len(pairs)), own)))
    ]
    used = {word for pair in listed for word in (pair.cue, pair.target)}
    spare = _by_level([pair for pair in load_pairs(POOL) if not used & {pair.cue, pair.target}])
    for pairs in spare.values():
        rng.shuffle(pairs)
    return _Words(listed, [], spare, None, associates)


def _fillers(card: TaskCard) -> list[WordPair]:
    tested = {folded(pair.cue) for pair in card.pairs()}
    return [
        WordPair(
            trcode=turn.trcode,
            level=level_of(turn.similarity),
            similarity=turn.similarity,
            cue=turn.word1,
            target=turn.word2,
        )
        for turn in _turns(card)
        if isinstance(turn, PairTrial) and folded(turn.word1) not in tested
    ]


def _turns(card: TaskCard) -> list[CardTrial]:
    return [turn for turns in card.items.values() for turn in turns]


def _by_level(pairs: Sequence[WordPair]) -> dict[str, list[WordPair]]:
    levels: dict[str, list[WordPair]] = defaultdict(list)
    for pair in pairs:
        levels[pair.level].append(pair)
    return dict(levels)


# ---- one participant ----


def _design(settings: Settings, words: _Words, participant: int) -> Design:
    lists = _lists(settings, words, participant)
    pairs = [pair for members in lists for pair in members.pairs]
    if words.card is not None and settings.order == "card":
        phases = _card_phases(settings, words.card, pairs)
    else:
        phases = _phases(settings, lists, pairs, participant)
    cues = {folded(pair.cue) for pair in pairs} & words.associates.keys()
    return Design(
        participant=participant,
        settings=settings,
        pairs=tuple(pairs),
        steps=tuple(_steps(settings, phases, participant)),
        system=_card_system(words.card) if words.card and settings.render == "psychscanner" else None,
        associates={cue: tuple(words.associates[cue]) for cue in sorted(cues)},
    )


class _List(NamedTuple):
    """A study list. Its numbers count `pairs` from 0."""

    pairs: list[Pair]
    rounds: list[list[int]]
    """The pairs studied in each round; one round unless cues are updated. The last round holds what is tested."""
    before: list[int]
    """Buffers studied first."""
    after: list[int]
    """Buffers studied last."""
    fillers: list[int]
    """Studied with the last round and never tested."""


def _lists(settings: Settings, words: _Words, participant: int) -> list[_List]:
    rng = _random(settings, "pairing", participant)
    spare = {level: iter(pairs) for level, pairs in words.spare.items()}
    first, second = settings.lists.split("-") if settings.n_lists == 2 else ("AB", None)
    listed = words.listed
    known = [_plain(pair, first) for pair in listed]
    if settings.study == "repaired":
        known = _swapped(listed, first, rng)
    built = [_list(settings, known, words.fillers, listed, spare, rng)]
    if second == "AC":
        built.append(_list(settings, _replaced(listed, second, spare, rng), [], listed, spare, rng))
    elif second == "CD":
        new = [_plain(next(spare[pair.level]), second) for pair in listed]
        built.append(_list(settings, new, [], listed, spare, rng))
    elif second == "ABr":
        built.append(_list(settings, _swapped(listed, second, rng), [], listed, spare, rng))
    return [_directed(settings, members, participant) for members in built]


def _list(
    settings: Settings,
    tested: list[Pair],
    fillers: list[WordPair],
    listed: list[WordPair],
    spare: dict[str, Iterator[WordPair]],
    rng: random.Random,
) -> _List:
    name = tested[0].list
    pairs: list[Pair] = []

    def add(new: Sequence[Pair]) -> list[int]:
        pairs.extend(new)
        return list(range(len(pairs) - len(new), len(pairs)))

    replaced = [add(_replaced(listed, name, spare, rng)) for _ in range(settings.updates - 1)]
    last = add(tested)
    around = [_plain(next(spare[level]), name, scored=False) for level in _in_turn(spare, 2 * settings.buffers)]
    before, after = add(around[: settings.buffers]), add(around[settings.buffers :])
    unscored = add([_plain(pair, name, scored=False) for pair in fillers])
    return _List(pairs, [*replaced, last], before, after, unscored)


def _in_turn(levels: dict[str, Iterator[WordPair]], count: int) -> list[str]:
    names = list(levels)
    return [names[place % len(names)] for place in range(count)]


def _plain(pair: WordPair, name: str, scored: bool = True) -> Pair:
    return Pair(
        trcode=pair.trcode,
        list=name,
        level=pair.level,
        similarity=pair.similarity,
        first=pair.cue,
        second=pair.target,
        scored=scored,
    )


def _joined(one: WordPair, other: WordPair, name: str) -> Pair:
    """The first word of one pair with the second word of another."""
    return _plain(one, name).model_copy(update={"trcode": f"{one.trcode}+{other.trcode}", "second": other.target})


def _swapped(listed: Sequence[WordPair], name: str, rng: random.Random) -> list[Pair]:
    """Every second word moves to another pair of its level, in one random ring."""
    partner: dict[str, WordPair] = {}
    for level, pairs in _by_level(listed).items():
        if len(pairs) < 2:
            raise MindscopeError(
                f"The list has one pair at level {level} ({pairs[0].trcode}); re-pairing needs two or more at each."
            )
        ring = rng.sample(pairs, len(pairs))
        partner |= {pair.trcode: ring[place - 1] for place, pair in enumerate(ring)}
    return [_joined(pair, partner[pair.trcode], name) for pair in listed]


def _replaced(
    listed: Sequence[WordPair], name: str, spare: dict[str, Iterator[WordPair]], rng: random.Random
) -> list[Pair]:
    """Every first word with the second word of an unused pair of its level."""
    donors = {level: [next(spare[level]) for _ in pairs] for level, pairs in _by_level(listed).items()}
    for pairs in donors.values():
        rng.shuffle(pairs)
    return [_joined(pair, donors[pair.level].pop(), name) for pair in listed]


def _directed(settings: Settings, members: _List, participant: int) -> _List:
    """With `both`, every other pair of a level is probed backward, and the next participant has it the other way."""
    if settings.direction == "forward":
        return members
    seen: dict[str, int] = defaultdict(int)
    directed = []
    for pair in members.pairs:
        backward = settings.direction == "backward" or (seen[pair.level] + participant) % 2 == 1
        seen[pair.level] += 1
        directed.append(pair.model_copy(update={"direction": "backward"}) if backward else pair)
    return members._replace(pairs=directed)


# ---- orders ----


class _Event(NamedTuple):
    """A pair shown or asked for; its number counts `Design.pairs`."""

    kind: Literal["study", "test"]
    pair: int
    stimulus: str | None = None


class _Phase(NamedTuple):
    cycle: int
    kind: Literal["study", "test"]
    events: list[_Event]


def _phases(settings: Settings, lists: Sequence[_List], pairs: Sequence[Pair], participant: int) -> list[_Phase]:
    """Study phases, one a list, and a test phase, as often as there are cycles."""
    phases = []
    for cycle in range(1, settings.cycles + 1):
        studied: list[int] = []
        tested: list[int] = []
        buffers: list[int] = []
        start = 0
        for members in lists:
            order = [start + place for place in _study_order(settings, members, participant, cycle)]
            if settings.study != "none":
                phases.append(_Phase(cycle, "study", [_Event("study", pair) for pair in order]))
                studied += order
            tested += [start + place for place in members.rounds[-1]]
            buffers += [start + place for place in (*members.before, *members.after)]
            start += len(members.pairs)
        if settings.order == "shuffled":
            rng = _random(settings, "test", participant, cycle)
            rng.shuffle(buffers)
            tested = _test_order(settings, pairs, studied, buffers, tested, rng)
        phases.append(_Phase(cycle, "test", [_Event("test", pair) for pair in (*buffers, *tested)]))
    return phases


def _study_order(settings: Settings, members: _List, participant: int, cycle: int) -> list[int]:
    *replaced, last = members.rounds
    rounds = [*replaced, [*last, *members.fillers]]
    if settings.order == "shuffled":
        rng = _random(settings, "study", participant, cycle)
        turn = participant + cycle - 1
        rounds = [_rotated(settings, members.pairs, numbers, turn + nth, rng) for nth, numbers in enumerate(rounds)]
    return [*members.before, *(number for numbers in rounds for number in numbers), *members.after]


def _rotated(
    settings: Settings, pairs: Sequence[Pair], numbers: Sequence[int], turn: int, rng: random.Random
) -> list[int]:
    """Five groups, the levels spread over them, each shuffled; `turn` rotates them over the fifths of the list."""
    dealt = list(numbers)
    _random(settings, "groups").shuffle(dealt)
    dealt.sort(key=lambda number: pairs[number].similarity)
    groups = [dealt[start::LEVELS] for start in range(LEVELS)]
    for group in groups:
        rng.shuffle(group)
    return [number for fifth in range(LEVELS) for number in groups[(fifth - turn) % LEVELS]]


def _test_order(
    settings: Settings,
    pairs: Sequence[Pair],
    studied: Sequence[int],
    buffers: Sequence[int],
    tested: Sequence[int],
    rng: random.Random,
) -> list[int]:
    if not studied:
        return rng.sample(tested, len(tested))
    half = min(len(tested), len(studied)) // 2
    least = settings.min_lag or max(1, min(_DEFAULT_MIN_LAG, half))
    if least > half:
        raise MindscopeError(f"min_lag is {least}; with {len(tested)} pairs it is at most {half}.")
    last = {pair: place for place, pair in enumerate(studied)}
    since = {pair: len(studied) - last[pair] + len(buffers) for pair in tested}
    group = {pair: (pairs[pair].list, pairs[pair].level) for pair in tested}
    for _ in range(_ATTEMPTS):
        order = _Order(rng.sample(tested, len(tested)), since, group, least, rng)
        if order.keeps_distance() and order.balances():
            return order.pairs
    raise MindscopeError(f"No test order of {len(tested)} pairs was found with min_lag={least}; use a smaller one.")


class _Order:
    """A test order under amendment. The lag of the pair at place t, from 0, is `since[pair] + t`."""

    def __init__(
        self,
        pairs: list[int],
        since: dict[int, int],
        group: dict[int, tuple[str, str]],
        least: int,
        rng: random.Random,
    ) -> None:
        self.pairs = pairs
        self._since, self._group, self._least, self._rng = since, group, least, rng

    def keeps_distance(self) -> bool:
        """Swap every pair asked for too early with one that either place suits; False if there is none."""
        for place, pair in enumerate(self.pairs):
            if self._suits(pair, place):
                continue
            others = [
                other
                for other, rival in enumerate(self.pairs)
                if self._suits(pair, other) and self._suits(rival, place) and self._suits(rival, other)
            ]
            if not others:
                return False
            self._swap(place, self._rng.choice(others))
        return True

    def balances(self) -> bool:
        """Swap pairs between a group with long lags and one with short lags until the sums of lags are as equal as
        whole numbers can be; False if that gets stuck."""
        excess, total = self._excess(), len(self.pairs)
        for _ in range(_SWAPS):
            uneven = [(long, short) for long in excess for short in excess if excess[long] - excess[short] > total]
            if not uneven:
                return True
            long, short = self._rng.choice(uneven)
            room = excess[long] - excess[short]
            later = [place for place, pair in enumerate(self.pairs) if self._group[pair] == long]
            earlier = [place for place, pair in enumerate(self.pairs) if self._group[pair] == short]
            swaps = [
                (one, two)
                for one in earlier
                for two in later
                if 0 < (two - one) * total <= room and self._suits(self.pairs[two], one)
            ]
            gains = [(one, two) for one, two in swaps if (two - one) * total < room]
            if not swaps:
                continue
            one, two = self._rng.choice(gains or swaps)
            self._swap(one, two)
            excess[short] += (two - one) * total
            excess[long] -= (two - one) * total
        return False

    def _excess(self) -> dict[tuple[str, str], int]:
        """For each group, its sum of lags less its share of the whole, times the number of pairs. The lags count from
        the end of each list's own study, so that the test favours neither list."""
        nearest: dict[str, int] = {}
        for pair in self.pairs:
            name = self._group[pair][0]
            nearest[name] = min(self._since[pair], nearest.get(name, self._since[pair]))
        sums: dict[tuple[str, str], int] = defaultdict(int)
        sizes: dict[tuple[str, str], int] = defaultdict(int)
        for place, pair in enumerate(self.pairs):
            sums[self._group[pair]] += self._since[pair] - nearest[self._group[pair][0]] + place
            sizes[self._group[pair]] += 1
        whole = sum(sums.values())
        return {name: sums[name] * len(self.pairs) - sizes[name] * whole for name in sums}

    def _suits(self, pair: int, place: int) -> bool:
        return self._since[pair] + place >= self._least

    def _swap(self, one: int, two: int) -> None:
        self.pairs[one], self.pairs[two] = self.pairs[two], self.pairs[one]


def _card_phases(settings: Settings, card: TaskCard, pairs: Sequence[Pair]) -> list[_Phase]:
    """The card's turns as they stand, in each cycle."""
    place = {folded(pair.first): number for number, pair in enumerate(pairs)}
    events: list[_Event] = []
    for turn in _turns(card):
        if not isinstance(turn, PairTrial):
            if settings.render == "psychscanner":
                raise MindscopeError(
                    f"The task card {card.taskname!r} has the turn {turn.trcode!r}, which neither shows a pair nor "
                    "asks for one, and pal50 cannot replay it; use render='clean'."
                )
            continue
        kind: Literal["study", "test"] = "test" if turn.phase == "test" else "study"
        stimulus = card_text(turn.stimulus) if settings.render == "psychscanner" else None
        if kind == "test" or settings.study != "none":
            events.append(_Event(kind, place[folded(turn.word1)], stimulus))
    return [
        _Phase(cycle, kind, list(run))
        for cycle in range(1, settings.cycles + 1)
        for kind, run in groupby(events, key=lambda event: event.kind)
    ]


def card_text(content: object) -> str:
    """A turn's content as psychscanner puts it before the model."""
    return json.dumps(content, indent=4)


def _card_system(card: TaskCard) -> str:
    """psychscanner's system message: its instructions in a frame that looks like JSON and is not, unescaped."""
    return f'{{\n    "TASK CONTEXT": "{json.dumps(card.instructions)}"\n}}'


def _steps(settings: Settings, phases: Sequence[_Phase], participant: int) -> Iterator[Step]:
    for cycle, kind, events in phases:
        if kind == "test":
            yield from _sums(settings, participant, cycle)
            yield from (TestStep(cycle=cycle, pair=event.pair, stimulus=event.stimulus) for event in events)
            continue
        for start in range(0, len(events), settings.study_block):
            block = events[start : start + settings.study_block]
            yield StudyStep(cycle=cycle, pairs=tuple(event.pair for event in block), stimulus=block[0].stimulus)


def _sums(settings: Settings, participant: int, cycle: int) -> Iterator[SumStep]:
    rng = _random(settings, "sums", participant, cycle)
    for _ in range(settings.distractor_turns):
        yield SumStep(cycle=cycle, addends=(rng.randrange(10, 100), rng.randrange(10, 100)))


def _random(settings: Settings, *purpose: object) -> random.Random:
    """A generator of its own for each purpose; seeded by text, so that Python's hash seed has no part in it."""
    return random.Random("/".join(map(str, ("pal50", settings.seed, *purpose))))
