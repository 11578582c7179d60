"""Is the corpus what it claims to be? Counts, balance, what shortcuts score, what a tokenizer makes of it.

    from space_tracking.audit import audit, run, DISTINCT_COUNTS
    from space_tracking.corpus import load, load_distinct

    report = audit(load())                               # report.ok, report.format_text(), report.to_json()
    audit(load_distinct(), expected=DISTINCT_COUNTS)
    audit(load(), tokenizer=tokenizer)                   # anything with encode(text) -> list of ids
    run("embedded")                                      # `mindscope audit space_tracking`: both, with a tokenizer

A *heuristic* answers without keeping spaces apart: by position, frequency, colour, one space only, shared
words or the query alone. Each has a bound, but none in the one-space control, where copying is right.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise, permutations
from typing import Any, Protocol

from mindscope.errors import MindscopeError

from space_tracking.corpus import (
    BY_NAME,
    COLOURS,
    CONSTRUCTIONS,
    DISTINCT,
    HELD_OUT,
    SPLITS,
    Construction,
    Row,
    load,
    load_distinct,
    row_faults,
)

TEMPLATE_COUNTS = {name: n for construction in CONSTRUCTIONS for name, n in construction.templates.items()}
DISTINCT_COUNTS = dict(DISTINCT.templates)

SLACK = 0.02
"""How far from chance a heuristic may be that isn't exactly at chance by construction."""

NGRAM = 5
SHOWN_FAULTS = 20

Group = list[Row]


@dataclass(frozen=True)
class Balance:
    """How often each level of a factor occurs. The bound is on how much the commonest exceeds the rarest."""

    factor: str
    where: str
    counts: dict[str, float]
    allowed: float

    @property
    def spread(self) -> float:
        return max(self.counts.values()) - min(self.counts.values())

    @property
    def ok(self) -> bool:
        return self.spread <= self.allowed


@dataclass(frozen=True)
class Heuristic:
    """What a shortcut scores on a construction's forced choices. A tie between k values counts 1/k."""

    name: str
    construction: str
    n: int
    accuracy: float
    low: float
    high: float

    @property
    def ok(self) -> bool:
        return self.low - 1e-9 <= self.accuracy <= self.high + 1e-9


@dataclass(frozen=True)
class Overlap:
    """How many of the word n-grams of a scheme's test part occur in its train part too; has no bound."""

    scheme: str
    share: float
    share_masked: float
    """The same with nouns, names and colours replaced by their roles: what the sentences share."""


@dataclass(frozen=True)
class ColourTokens:
    """One colour after every prompt: how often it adds one id and no more, and the first ids it adds."""

    colour: str
    n: int
    single: int
    first_ids: dict[int, int]
    """How often each id is the first one added."""
    counter_example: str | None
    """The id of a row after whose prompt it is not one more token."""


@dataclass(frozen=True)
class Collision:
    """Two colours that begin with the same id after the same prompt."""

    colours: tuple[str, str]
    token: int
    n: int
    both_in_play: int
    """In how many of those `n` rows the forced choice is between the two."""


@dataclass(frozen=True)
class TokenAudit:
    colours: tuple[ColourTokens, ...]
    collisions: tuple[Collision, ...]

    @property
    def ok(self) -> bool:
        """Every colour is one more token after every prompt, and no two are the same one."""
        return not self.collisions and all(colour.single == colour.n for colour in self.colours)


@dataclass(frozen=True)
class Audit:
    n: int
    counts: dict[str, dict[str, dict[str, int]]]
    """Rows by construction, template and split."""
    faults: tuple[str, ...]
    balances: tuple[Balance, ...]
    heuristics: tuple[Heuristic, ...]
    overlaps: tuple[Overlap, ...]
    tokens: TokenAudit | None = None

    @property
    def ok(self) -> bool:
        bounded: tuple[Balance | Heuristic, ...] = (*self.balances, *self.heuristics)
        return not self.faults and all(item.ok for item in bounded) and (self.tokens is None or self.tokens.ok)

    def to_json(self) -> dict[str, Any]:
        """The audit as JSON values, with each bounded item's verdict and the whole's."""
        document = asdict(self) | {"ok": self.ok}
        for name in ("balances", "heuristics"):
            document[name] = [asdict(item) | {"ok": item.ok} for item in getattr(self, name)]
        if self.tokens is not None:
            document["tokens"] |= {"ok": self.tokens.ok}
        return document

    def format_text(self) -> str:
        """The audit as a page of plain text."""
        return "\n".join(line.rstrip() for line in _lines(self))


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]: ...


def audit(
    rows: Sequence[Row],
    *,
    expected: Mapping[str, int] = TEMPLATE_COUNTS,
    tokenizer: Tokenizer | None = None,
) -> Audit:
    """Measures `rows`, which should be a whole corpus: all splits, `expected[template]` rows a template.

    A row that contradicts itself is a fault and is left out of the measurements.
    """
    valid = [row for row in rows if not row_faults(row)]
    groups = _grouped(valid, lambda row: row.construction)
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        splits = counts.setdefault(row.construction, {}).setdefault(row.template, dict.fromkeys(SPLITS, 0))
        splits[row.split] += 1
    return Audit(
        n=len(rows),
        counts=counts,
        faults=(
            *_row_faults(rows),
            *_count_faults(rows, expected),
            *_pair_faults(rows),
            *_wording_faults(valid),
            *_leaks(rows),
        ),
        balances=tuple(item for name, group in groups.items() for item in _balances(BY_NAME[name], group)),
        heuristics=tuple(item for name, group in groups.items() for item in _heuristics(BY_NAME[name], group)),
        overlaps=(
            _overlap("entity", rows),
            _overlap("template", [row for row in rows if (row.template in HELD_OUT) == (row.split == "test")]),
        ),
        tokens=None if tokenizer is None else audit_tokens(rows, tokenizer),
    )


@dataclass(frozen=True)
class CorpusAudit:
    """Both parts of the corpus."""

    standard: Audit
    distinct: Audit

    @property
    def ok(self) -> bool:
        return self.standard.ok and self.distinct.ok

    def format_text(self) -> str:
        return "\n".join(["the corpus", self.standard.format_text(), "", "distinct", self.distinct.format_text()])

    def to_json(self) -> str:
        parts = {"standard": self.standard.to_json(), "distinct": self.distinct.to_json()}
        return json.dumps({"ok": self.ok} | parts, indent=2)


def run(tokenizer: str | None = None) -> CorpusAudit:
    """The audit of the installed corpus, with the tokenizer of a hub id, a folder or "embedded".

    Raises MindscopeError when the tokenizer can't be had, `StimulusError` when a file of the corpus is damaged.
    """
    encoder = None if tokenizer is None else _load_tokenizer(tokenizer)
    return CorpusAudit(
        audit(load(), tokenizer=encoder), audit(load_distinct(), expected=DISTINCT_COUNTS, tokenizer=encoder)
    )


def _load_tokenizer(source: str) -> Tokenizer:
    from mindscope import embedded
    from transformers import AutoTokenizer

    place = str(embedded.hf_folder()) if source == "embedded" else source
    try:
        return AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise MindscopeError(
            f"no tokenizer could be had from {source!r} ({str(error).splitlines()[0]}); give a hub id that can be "
            "reached, a folder, or embedded"
        ) from error


def audit_tokens(rows: Iterable[Row], tokenizer: Tokenizer) -> TokenAudit:
    """What each of the six colours adds to the ids of each prompt, by `encode(f"{prompt} {colour}")`."""
    n: Counter[str] = Counter()
    single: Counter[str] = Counter()
    first_ids: dict[str, Counter[int]] = {colour: Counter() for colour in COLOURS}
    counter_examples: dict[str, str] = {}
    collisions: Counter[tuple[tuple[str, str], int]] = Counter()
    in_play: Counter[tuple[tuple[str, str], int]] = Counter()
    for row in rows:
        prompt = tokenizer.encode(row.prompt)
        firsts: dict[str, int] = {}
        for colour in COLOURS:
            ids = tokenizer.encode(f"{row.prompt} {colour}")
            kept = _common_prefix(prompt, ids)
            n[colour] += 1
            if ids[kept:]:
                firsts[colour] = ids[kept]
                first_ids[colour][ids[kept]] += 1
            if kept == len(prompt) and len(ids) == len(prompt) + 1:
                single[colour] += 1
            else:
                counter_examples.setdefault(colour, row.id)
        for pair in combinations(COLOURS, 2):
            if pair[0] in firsts and firsts[pair[0]] == firsts.get(pair[1]):
                collisions[pair, firsts[pair[0]]] += 1
                in_play[pair, firsts[pair[0]]] += set(pair) <= set(row.in_play)
    return TokenAudit(
        tuple(
            ColourTokens(colour, n[colour], single[colour], dict(first_ids[colour]), counter_examples.get(colour))
            for colour in COLOURS
        ),
        tuple(Collision(*key, n=count, both_in_play=in_play[key]) for key, count in collisions.items()),
    )


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """The number of leading ids that are the same."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


# --- Faults: what is wrong whatever the numbers say


def _row_faults(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        for fault in row_faults(row):
            yield f"{row.id} should have {fault}"


def _count_faults(rows: Sequence[Row], expected: Mapping[str, int]) -> Iterator[str]:
    found = Counter(row.template for row in rows)
    for template in {**expected, **found}:
        if found[template] != expected.get(template, 0):
            yield f"{template}: {found[template]} rows, should be {expected.get(template, 0)}"
    for field, values in (("id", [row.id for row in rows]), ("prompt", [row.prompt for row in rows])):
        for value, count in Counter(values).items():
            if count > 1:
                yield f"{count} rows have the same {field}, {value!r}"


def _pair_faults(rows: Sequence[Row]) -> Iterator[str]:
    for pair_id, pair in _grouped(rows, lambda row: row.pair_id).items():
        fault = _pair_fault(pair)
        if fault is not None:
            yield f"pair {pair_id}: {fault}"


def _pair_fault(pair: Group) -> str | None:
    """Why these rows are no minimal pair, or None."""
    if len(pair) != 2:
        return f"{len(pair)} rows, should be 2"
    first, second = pair
    shared = ("construction", "template", "split", "entity", "distractor_entity", "agents", "mention_order")
    for field in shared:
        if getattr(first, field) != getattr(second, field):
            return f"the rows differ in {field}"
    if (first.answer, first.foil) != (second.foil, second.answer):
        return "the answer of each row must be the foil of the other"
    if len(first.space_value_map) == 1:
        if _masked(first, first.context) != _masked(second, second.context):
            return "the contexts differ in more than the colour"
    elif first.context != second.context:
        return "the contexts are not the same, byte for byte"
    elif first.query_space == second.query_space:
        return f"both rows ask about {first.query_space}"
    return None


def _wording_faults(rows: Sequence[Row]) -> Iterator[str]:
    """A template has one wording of the context per order of mention and one of the query per space."""
    for template, group in _grouped(rows, lambda row: row.template).items():
        contexts: dict[str, Counter[str]] = defaultdict(Counter)
        queries: dict[str, Counter[str]] = defaultdict(Counter)
        for row in group:
            order = "-".join(row.mention_order) + (" distractor-first" if row.distractor_first else "")
            contexts[order][_masked(row, row.context)] += 1
            queries[row.query_space][_masked(row, row.query)] += 1
        for part, wordings in (("context", contexts), ("query", queries)):
            for level, texts in wordings.items():
                if len(texts) > 1:
                    rarest = min(texts, key=texts.__getitem__)
                    yield f"{template}: {len(texts)} wordings of the {level} {part}, the rarest {rarest!r}"
            if len({text for texts in wordings.values() for text in texts}) < len(wordings):
                yield f"{template}: the same wording of the {part} stands for two of {', '.join(wordings)}"
        if BY_NAME[group[0].construction].n_agents == 2:
            for fault in _nested_belief_faults(group):
                yield f"{template}: {fault}"


def _nested_belief_faults(group: Group) -> Iterator[str]:
    """The outer and the inner person must not share a verb, and no query may use one twice.

    Checked on all content words but the names and the entity, so no list of verbs is needed.
    """
    for text in sorted({_masked(row, row.context) for row in group}):
        first, second = (set(_stems(_ROLE.sub("", clause))) for clause in _clauses(text, "COLOUR")[:2])
        if first & second:
            yield f"both people's clauses have {', '.join(sorted(first & second))}: {text!r}"
    for text in sorted({_masked(row, row.query) for row in group}):
        repeated = [stem for stem, n in Counter(_stems(_ROLE.sub("", text))).items() if n > 1]
        if repeated:
            yield f"the query repeats {', '.join(repeated)}: {text!r}"


def _leaks(rows: Sequence[Row]) -> Iterator[str]:
    """Nouns and names that occur in more than one split."""
    homes: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for word in (row.entity, *filter(None, [row.distractor_entity]), *row.agents):
            homes[word].add(row.split)
    for word, splits in homes.items():
        if len(splits) > 1:
            yield f"{word!r} occurs in {' and '.join(split for split in SPLITS if split in splits)}"


# --- Balance


def _balances(construction: Construction, group: Group) -> Iterator[Balance]:
    control = len(construction.spaces) == 1
    templates = _grouped(group, lambda row: row.template)
    splits = _grouped(group, lambda row: row.split)
    contexts = [pair[0] for pair in _grouped(group, lambda row: row.pair_id).values()]
    by_template = _grouped(contexts, lambda row: row.template)

    def gold(rows: Group, where: str, allowed: int) -> Balance:
        return _counted("gold colour", where, (row.answer for row in rows), construction.colours, allowed)

    yield gold(group, construction.name, 0)
    for name, rows in (
        *templates.items(),
        *((f"{construction.name}/{name}", rows) for name, rows in splits.items()),
    ):
        yield gold(rows, name, 2 if control else 0)
    if control:
        return

    for name, rows in templates.items():
        yield _counted("query space", name, (row.query_space for row in rows), construction.spaces, 0)
    orders = ["-".join(order) for order in (construction.spaces, construction.spaces[::-1])]
    for name, rows in ((construction.name, contexts), *by_template.items()):
        yield _counted("order of mention", name, ("-".join(row.mention_order) for row in rows), orders, 1)
    if construction.distractor != "none":
        for name, rows in by_template.items():
            firsts = ("distractor" if row.distractor_first else "target" for row in rows)
            yield _counted("entity told first", name, firsts, ("target", "distractor"), 0)

    for factor in ("first_mentioned", "last_mentioned"):
        values = (getattr(row, factor) for row in contexts)
        allowed = max(2, len(contexts) // 20)
        yield _counted(factor.replace("_", " "), construction.name, values, construction.colours, allowed)
    pairs = ["-".join(pair) for pair in permutations(construction.colours, 2)]
    for name, rows in ((construction.name, contexts), *by_template.items()):
        values = ("-".join(row.space_value_map[space] for space in construction.spaces) for row in rows)
        yield _counted("colours of the spaces", name, values, pairs, 3)
    for name, rows in by_template.items():
        yield Balance("words per clause", name, _clause_lengths(rows), 4)
    if construction.n_agents:
        for split, rows in splits.items():
            uses = Counter(agent for row in rows for agent in row.agents)
            yield Balance("rows per name", f"{construction.name}/{split}", dict(uses), 8)


def _counted(factor: str, where: str, values: Iterable[str], levels: Iterable[str], allowed: float) -> Balance:
    return Balance(factor, where, {**dict.fromkeys(levels, 0), **Counter(values)}, allowed)


def _clause_lengths(rows: Group) -> dict[str, float]:
    """Mean number of words in the clauses of each space."""
    words: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        clauses = _clauses(row.context)
        per_space = len(clauses) // len(row.mention_order)
        for i, clause in enumerate(clauses):
            words[row.mention_order[i // per_space]].append(len(clause.split()))
    return {space: round(sum(lengths) / len(lengths), 2) for space, lengths in words.items()}


# --- Heuristics


def _heuristics(construction: Construction, group: Group) -> Iterator[Heuristic]:
    n_spaces = len(construction.spaces)
    chance = 1 / construction.n_values
    right_entity = 1 / n_spaces
    measured = (
        ("first mention", _hits(group, lambda row: row.mentions[:1]), chance, chance),
        ("last mention", _hits(group, lambda row: row.mentions[-1:]), chance, chance),
        ("most frequent", _hits(group, lambda row: _best(row.in_play, row.mentions.count)), chance, chance),
        ("fixed colour", _fixed_colour(construction, group), chance, chance),
        ("always one space", _one_space(construction, group), right_entity, right_entity),
        ("lexical overlap", _hits(group, _by_words), chance - SLACK, right_entity + SLACK),
        ("phrase overlap", _hits(group, _by_phrase), chance - SLACK, right_entity + SLACK),
        ("place by query", _place_by_query(group), chance, chance + SLACK),
        ("query only", _query_only(group), chance, chance + SLACK),
    )
    for name, hits, low, high in measured:
        bounds = (low, high) if n_spaces > 1 else (0.0, 1.0)
        yield Heuristic(name, construction.name, len(group), hits / len(group), *bounds)


def _hits(group: Group, choose: Callable[[Row], Sequence[str]]) -> float:
    """Rows answered right by `choose`, which gives the tied values; k tied values count 1/k each."""
    return sum((row.answer in chosen) / len(chosen) for row in group if (chosen := choose(row)))


def _best(values: Sequence[str], score: Callable[[str], int]) -> list[str]:
    top = max(map(score, values))
    return [value for value in values if score(value) == top]


def _fixed_colour(construction: Construction, group: Group) -> float:
    """The best of all rankings of the colours, each answering its first colour that is in play."""
    answers = Counter((row.answer, row.in_play) for row in group)
    return max(
        sum(n for (answer, in_play), n in answers.items() if answer == min(in_play, key=ranking.index))
        for ranking in permutations(construction.colours)
    )


def _one_space(construction: Construction, group: Group) -> float:
    """The better of answering the entity's colour in one space, whichever is asked about."""
    return max(sum(row.space_value_map.get(space) == row.answer for row in group) for space in construction.spaces)


def _by_words(row: Row) -> Sequence[str]:
    """The colours whose clause shares most content words with the query."""
    asked = set(_stems(row.query))
    scores: Counter[str] = Counter(dict.fromkeys(row.mentions, 0))
    for colour, clause in zip(row.mentions, _clauses(row.context), strict=True):
        scores[colour] = max(scores[colour], len(asked & set(_stems(clause))))
    return _best(list(scores), scores.__getitem__) if scores else []


def _by_phrase(row: Row) -> Sequence[str]:
    """The colours whose clause shares the longest run of words with the query."""
    asked = _words(row.query)
    scores: Counter[str] = Counter(dict.fromkeys(row.mentions, 0))
    for colour, clause in zip(row.mentions, _clauses(row.context), strict=True):
        scores[colour] = max(scores[colour], _longest_run(asked, _words(clause)))
    return _best(list(scores), scores.__getitem__) if scores else []


def _place_by_query(group: Group) -> float:
    """For each query of each template the better of two policies: the first colour told, or the last."""
    firsts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in group:
        hits = firsts[row.template, row.query_space]
        hits[0] += row.answer == row.first_mentioned
        hits[1] += row.answer == row.last_mentioned
    return sum(max(hits) for hits in firsts.values())


def _query_only(group: Group) -> float:
    """The best any reader of the query and the values in play could do, with these very rows for training."""
    answers: dict[tuple[str, str, tuple[str, ...]], Counter[str]] = defaultdict(Counter)
    for row in group:
        answers[row.template, row.query, row.in_play][row.answer] += 1
    return sum(max(counter.values()) for counter in answers.values())


# --- Report


def _lines(report: Audit) -> Iterator[str]:
    yield f"space_tracking: {report.n:,} rows"
    yield ""
    yield f"{'rows':40}{''.join(f'{split:>8}' for split in SPLITS)}{'all':>8}"
    for construction, templates in report.counts.items():
        total = {split: sum(splits[split] for splits in templates.values()) for split in SPLITS}
        lines = {construction: total} | {f"  {template}": splits for template, splits in templates.items()}
        for name, splits in lines.items():
            yield f"{name:40}{''.join(f'{splits[split]:>8}' for split in SPLITS)}{sum(splits.values()):>8}"

    yield ""
    yield "balance"
    whole = [item for item in report.balances if item.where in BY_NAME]
    for item in whole:
        levels = "  ".join(f"{level} {count:g}" for level, count in item.counts.items())
        shown = levels if len(item.counts) <= len(COLOURS) else f"{len(item.counts)} levels, {_range(item)}"
        yield f"  {item.factor}, {item.where}: {shown}"
    parts = _by_factor(item for item in report.balances if item.where not in BY_NAME)
    for factor, items in parts.items():
        worst = max(items, key=lambda item: item.spread - item.allowed)
        yield (
            f"  {factor}, in {len(items)} parts: widest in {worst.where}, {_range(worst)} "
            f"(may spread by {worst.allowed:g})"
        )

    constructions = {item.construction: None for item in report.heuristics}
    yield ""
    yield f"{'forced accuracy of a heuristic':32}" + "".join(f"{_short(name):>10}" for name in constructions)
    for name in {item.name: None for item in report.heuristics}:
        cells = [item for item in report.heuristics if item.name == name]
        yield f"  {name:30}" + "".join(f"{item.accuracy:>9.3f}{' ' if item.ok else '!'}" for item in cells)
    if CONSTRUCTIONS[0].name in constructions:
        yield "  in the control copying is right: no bound"

    for overlap in report.overlaps:
        yield (
            f"{NGRAM}-grams of the {overlap.scheme} scheme's test part that its train part has: "
            f"{overlap.share:.1%}; {overlap.share_masked:.1%} with nouns, names and colours masked"
        )
    if report.tokens is not None:
        yield from _token_lines(report.tokens)
    yield ""
    yield from _verdict_lines(report)


def _token_lines(tokens: TokenAudit) -> Iterator[str]:
    yield ""
    yield "tokens: each colour after each prompt"
    for item in tokens.colours:
        ids = ", ".join(f"{token} ({n})" for token, n in sorted(item.first_ids.items(), key=lambda pair: -pair[1])[:4])
        example = "" if item.counter_example is None else f"; not after {item.counter_example}"
        yield f"  {item.colour:8} one more id in {item.single} of {item.n}; first ids {ids}{example}"
    for clash in tokens.collisions:
        yield (
            f"  {' and '.join(clash.colours)} begin with the same id {clash.token} after {clash.n} prompts; "
            f"{clash.both_in_play} of these choose between them"
        )
    if not tokens.ok:
        yield "  first-token scoring is not valid here; full-sequence scoring is"


def _verdict_lines(report: Audit) -> Iterator[str]:
    for fault in report.faults[:SHOWN_FAULTS]:
        yield f"FAULT  {fault}"
    if len(report.faults) > SHOWN_FAULTS:
        yield f"FAULT  and {len(report.faults) - SHOWN_FAULTS} more"
    for item in report.balances:
        if not item.ok:
            yield (f"LEFT ITS BOUND  {item.factor}, {item.where}: {_range(item)}, may spread by {item.allowed:g}")
    for heuristic in report.heuristics:
        if not heuristic.ok:
            yield (
                f"LEFT ITS BOUND  {heuristic.name}, {heuristic.construction}: {heuristic.accuracy:.3f}, "
                f"should be from {heuristic.low:.3f} to {heuristic.high:.3f}"
            )
    yield "passed" if report.ok else "failed"


def _range(item: Balance) -> str:
    return f"{min(item.counts.values()):g} to {max(item.counts.values()):g}"


def _short(construction: str) -> str:
    return next(iter(BY_NAME[construction].templates)).partition("-")[0]


def _by_factor(items: Iterable[Balance]) -> dict[str, list[Balance]]:
    factors: dict[str, list[Balance]] = {}
    for item in items:
        factors.setdefault(item.factor, []).append(item)
    return factors


# --- Text

_STOPWORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a although an and another anyone around as at be been beside beyond but by for had has have i if in
        inside is it its itself me my next of off on one or other our out outside so than that the them then
        there they this though to under unlike up us was we were what when whereas which while who whom whose
        will with within would yet you
        """,
    )
)
_ROLE = re.compile(r"\b(?:ENTITY|DISTRACTOR|PERSON\d|COLOUR)\b")
_BREAK = re.compile(r"[.;,]|\b(?:and|but|yet|while|whereas|although|though)\b")


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", re.sub(r"'s\b", "", text).lower())


def _stems(text: str) -> list[str]:
    """Content words cut to five letters, so that "painting" and "painted" are the same; without colours."""
    return [word[:5] for word in _words(text) if word not in _STOPWORDS and word not in (*COLOURS, "colour")]


def _clauses(context: str, colour: str = "|".join(COLOURS)) -> list[str]:
    """The context, a clause per colour word: cut after each, at the next punctuation mark or conjunction."""
    places = [match.end() for match in re.finditer(rf"\b(?:{colour})\b", context)]
    cuts = [0]
    for end, following in pairwise(places):
        gap = _BREAK.search(context, end, following)
        cuts.append(gap.start() if gap else end)
    return [context[start:end] for start, end in zip(cuts, [*cuts[1:], len(context)], strict=True)] if places else []


def _longest_run(a: Sequence[str], b: Sequence[str]) -> int:
    longest, lengths = 0, [0] * (len(b) + 1)
    for word in a:
        lengths = [0, *(lengths[i] + 1 if word == other else 0 for i, other in enumerate(b))]
        longest = max(longest, *lengths)
    return longest


def _masked(row: Row, text: str) -> str:
    """A text with the row's own words replaced by their roles: what the rows of a template have in common."""
    roles = {row.entity: "ENTITY"} | {name: f"PERSON{i}" for i, name in enumerate(row.agents, start=1)}
    if row.distractor_entity is not None:
        roles[row.distractor_entity] = "DISTRACTOR"
    roles |= dict.fromkeys(COLOURS, "COLOUR")
    pattern = "|".join(map(re.escape, roles))
    masked = re.sub(rf"\b(?:{pattern})\b", lambda match: roles[match[0]], text)
    return re.sub(r"\b([Aa])n (?=ENTITY|DISTRACTOR)", r"\1 ", masked)


def _overlap(scheme: str, rows: Sequence[Row]) -> Overlap:
    return Overlap(
        scheme,
        share=_shared_ngrams((row.split, row.prompt) for row in rows),
        share_masked=_shared_ngrams((row.split, _masked(row, row.prompt)) for row in rows),
    )


def _shared_ngrams(texts: Iterable[tuple[str, str]]) -> float:
    ngrams: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for split, text in texts:
        words = _words(text)
        ngrams[split].update(zip(*(words[i:] for i in range(NGRAM)), strict=False))
    return len(ngrams["test"] & ngrams["train"]) / len(ngrams["test"]) if ngrams["test"] else 0.0


def _grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
