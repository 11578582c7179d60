r"""The bearers file, the items document that goes with it, and the benchmark the two make.

    bearers = parse_bearers(text)                       # MindscopeError lists every fault with its line
    benchmark = build_benchmark(bearers, read_items(Path("items.json")))
    compile_constraints(benchmark.ordinal_families)     # the implications that the declared structure asserts

One bearer a line, `id "expression"`; blank lines are skipped; a comment that opens with an annotation
declares structure:

    # @ordinal soil = [dry, moist, wet]        an ordered family of which at most one holds
    # @mutex season = [spring, autumn]         the same without an order
    # @entails frost -> cold
    # @copresent temperature & place           an item with a tier of one needs a tier of each
    # ~regularity: text                        something to be tested; indented comment lines continue it

infereval passes over an annotation it cannot read, and the second line of a regularity, without a word. Here
the first is a fault, as is a bearer in two families; `compat=True` reads as infereval does.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infereval_env.files import check_benchmark, faults_error, read_json, shape_faults
from infereval_env.formats import (
    Analyst,
    Bearer,
    Benchmark,
    ContextBuilders,
    CopresenceRule,
    EntailmentRule,
    Ids,
    Item,
    MonotonicityStep,
    Regularity,
    RsrTarget,
    Strict,
    Variation,
    VerificationPrompt,
)
from infereval_env.verdicts import Verdict

PENDING = "pending-analyst-panel"
"""The analyst who stands in, abstaining throughout, until a panel has answered."""

_BEARER = re.compile(r'(\S+)\s+"(.*)"\s*\Z')
_ORDINAL = re.compile(r"@ordinal\s+(\w+)\s*=\s*\[(.*?)\](?:.*@target\s+(\w+))?")
_MUTEX = re.compile(r"@mutex\s+(\w+)\s*=\s*\[(.*?)\]")
_ENTAILS = re.compile(r"@entails\s+(\w+)\s*->\s*(\w+)")
_COPRESENT = re.compile(r"@copresent\s+(.*)")
_REGULARITY = re.compile(r"~regularity\s*:\s*(.*)")


class Family(NamedTuple):
    name: str
    tiers: tuple[str, ...]
    ordered: bool
    target: str | None


@dataclass
class BearersDocument:
    """What a bearers file declares."""

    bearers: dict[str, str] = field(default_factory=dict)
    families: list[Family] = field(default_factory=list)
    copresence: list[tuple[str, ...]] = field(default_factory=list)
    entailments: list[tuple[str, str]] = field(default_factory=list)
    regularities: list[str] = field(default_factory=list)

    def family_of(self) -> dict[str, str]:
        """The family of each bearer that is a tier of one."""
        return {tier: family.name for family in self.families for tier in family.tiers}


def parse_bearers(text: str, source: str = "bearers file", *, compat: bool = False) -> BearersDocument:
    """The declarations of a bearers file. Raises MindscopeError listing every fault with its line."""
    found, faults = BearersDocument(), []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if stripped.startswith("#"):
            faults += [f"line {number}: {fault}" for fault in _read_comment(stripped, found, compat)]
            if not compat and _REGULARITY.match(_comment(stripped)):
                found.regularities[-1] += _continuation(lines[number:])
        elif stripped:
            faults += [f"line {number}: {fault}" for fault in _read_bearer(stripped, found)]
    faults += _reference_faults(found, compat)
    if faults:
        raise faults_error(source, faults)
    return found


def _read_bearer(line: str, found: BearersDocument) -> Iterator[str]:
    match = _BEARER.match(line)
    if match is None:
        yield f'found {line!r}; a bearer is written id "expression"'
    elif found.bearers.setdefault(match[1], match[2]) != match[2]:
        yield f"bearer {match[1]!r} already has another expression, {found.bearers[match[1]]!r}"


def _comment(line: str) -> str:
    return line.lstrip("#").strip()


def _read_comment(line: str, found: BearersDocument, compat: bool) -> Iterator[str]:
    """Note the annotation a comment line opens with, if any; yields what is wrong with it."""
    body = _comment(line)
    if match := _ORDINAL.match(body) or _MUTEX.match(body):
        tiers = tuple(tier for part in match[2].split(",") if (tier := part.strip()))
        ordered = body.startswith("@ordinal")
        target = match[3] if ordered else None
        if not tiers:
            yield f"family {match[1]!r} has no tiers"
        else:
            found.families.append(Family(match[1], tiers, ordered, target))
    elif match := _ENTAILS.match(body):
        found.entailments.append((match[1], match[2]))
    elif match := _COPRESENT.match(body):
        names = tuple(part.split()[0] for part in match[1].split("&") if part.strip())
        if len(names) < 2:
            yield f"@copresent names {list(names)}; it takes two families or more"
        else:
            found.copresence.append(names)
    elif match := _REGULARITY.match(body):
        found.regularities.append(match[1])
    elif not compat and re.match(r"[@~]\s*\w", body):
        yield f"{body!r} is not a readable @ordinal, @mutex, @entails, @copresent or ~regularity"


def _continuation(following: Sequence[str]) -> str:
    """The text of the comment lines, indented by two spaces or more, that continue a regularity."""
    text = ""
    for line in following:
        match = re.match(r"\s*#+\s{2,}(\S.*)", line)
        if match is None or match[1].startswith(("@", "~")):
            break
        text += " " + match[1].strip()
    return text


def _reference_faults(found: BearersDocument, compat: bool) -> Iterator[str]:
    names = {family.name for family in found.families}
    for family in found.families:
        if unknown := [tier for tier in family.tiers if tier not in found.bearers]:
            yield f"family {family.name!r}: {unknown} are not bearers"
    for copresent in found.copresence:
        if unknown := [name for name in copresent if name not in names]:
            yield f"@copresent {' & '.join(copresent)}: {unknown} are not families"
    for pair in found.entailments:
        if unknown := [name for name in pair if name not in found.bearers]:
            yield f"@entails {pair[0]} -> {pair[1]}: {unknown} are not bearers"
    if compat:
        return
    if len(names) < len(found.families):
        repeated = sorted({f.name for f in found.families if [g.name for g in found.families].count(f.name) > 1})
        yield f"families {repeated} are declared more than once"
    for tier in found.bearers:
        holders = [family.name for family in found.families if tier in family.tiers]
        if len(holders) > 1:
            yield f"bearer {tier!r} is in the families {holders}; a bearer has one family"


class Entry(Strict):
    """One entry of an items document. `target` is the sole conclusion, unless `conclusions` are given."""

    id: str
    premises: Ids
    target: str | None = None
    conclusions: Ids | None = None
    ladder: str | None = None
    variation: Variation | None = None
    placeholder: Literal["good", "bad", "abstain", "contested"] | None = None
    note: str | None = None
    monotonicity: MonotonicityStep | None = None
    analyst_verdicts: tuple[Verdict | None, ...] = ()
    analyst_rationales: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    rsr_target: RsrTarget | None = None


class Meta(BaseModel):
    """The `_meta` block: the benchmark's own fields. Keys a benchmark has no place for are passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    id: str
    title: str | None = None
    domain: str | None = None
    description: str | None = None
    targets: tuple[str, ...] = ()
    verification_prompt: VerificationPrompt | None = None
    template_id: str | None = None
    coherence_frame_id: str | None = None
    context_builders: ContextBuilders = ContextBuilders()
    analysts: tuple[Analyst, ...] = ()
    paraphrases: dict[str, tuple[str, ...]] = {}
    """Other wordings of a bearer, which the bearers file has no place for."""


class ItemsDocument(Strict):
    meta: Meta = Field(alias="_meta")
    items: tuple[Entry, ...]


def read_items(path: Path) -> ItemsDocument:
    """The items document in `path`. Raises MindscopeError listing every fault."""
    text, data = read_json(path)
    try:
        return ItemsDocument.model_validate_json(text)
    except ValidationError as error:
        raise faults_error(str(path), list(shape_faults(error, data))) from error


def build_benchmark(
    bearers: BearersDocument, document: ItemsDocument, source: str = "items document", *, compat: bool = False
) -> Benchmark:
    """The benchmark of a bearers file and its items document.

    Without analysts, one stands in until there is a panel. Verdicts nobody has given are missing (null);
    under `compat` they are abstentions, as infereval writes them. Raises MindscopeError listing every fault.
    """
    meta = document.meta
    analysts = meta.analysts or (Analyst(id=PENDING, display_name="Pending recruitment"),)
    family_of = bearers.family_of()
    faults = [
        f"item {entry.id!r} monotonicity family: the @mutex {entry.monotonicity.family!r} has no order"
        for entry in document.items
        if entry.monotonicity and entry.monotonicity.family in {f.name for f in bearers.families if not f.ordered}
    ]
    faults += [
        f"_meta paraphrases: {name!r} is not a bearer" for name in meta.paraphrases if name not in bearers.bearers
    ]
    if faults and not compat:
        raise faults_error(source, faults)
    benchmark = Benchmark(
        id=meta.id,
        title=meta.title,
        domain=meta.domain,
        description=meta.description,
        bearers={
            name: Bearer(
                expression=expression,
                paraphrases=meta.paraphrases.get(name, ()),
                ordinal_family=family_of.get(name),
            )
            for name, expression in bearers.bearers.items()
        },
        analysts=analysts,
        context_builders=meta.context_builders,
        verification_prompt=meta.verification_prompt,
        template_id=meta.template_id,
        coherence_frame_id=meta.coherence_frame_id,
        items=tuple(_item(entry, len(analysts), "abstain" if compat else None) for entry in document.items),
        ordinal_families={family.name: family.tiers for family in bearers.families},
        copresence_rules=tuple(CopresenceRule(families=names) for names in bearers.copresence),
        entailment_rules=tuple(EntailmentRule(antecedent=a, consequent=b) for a, b in bearers.entailments),
        regularities=tuple(Regularity(description=text) for text in bearers.regularities),
        targets=meta.targets,
    )
    return check_benchmark(benchmark, source)


def _item(entry: Entry, n_analysts: int, unsaid: Verdict | None) -> Item:
    sole = (entry.target,) if entry.target is not None else ()
    return Item(
        id=entry.id,
        premises=entry.premises,
        conclusions=sole if entry.conclusions is None else entry.conclusions,
        analyst_verdicts=entry.analyst_verdicts or (unsaid,) * n_analysts,
        analyst_rationales=entry.analyst_rationales,
        tags=entry.tags,
        rsr_target=entry.rsr_target,
        ladder=entry.ladder,
        variation=entry.variation,
        target=entry.target,
        placeholder=entry.placeholder,
        construction_note=entry.note,
        monotonicity_step=entry.monotonicity,
    )


class Sequent(NamedTuple):
    """⟨Γ, Δ⟩ asserted good by the declared structure."""

    premises: frozenset[str]
    conclusions: frozenset[str]


class Compiled(NamedTuple):
    exclusivity: list[Sequent]
    exhaustivity: list[Sequent]
    entailment: list[Sequent]
    admissibility: list[tuple[str, ...]]
    """Families of which an item's premises touch all or none."""

    @property
    def sequents(self) -> list[Sequent]:
        return [*self.exclusivity, *self.exhaustivity, *self.entailment]


def compile_constraints(
    families: dict[str, tuple[str, ...]],
    copresence: Sequence[CopresenceRule] = (),
    entailments: Sequence[EntailmentRule] = (),
) -> Compiled:
    """What the declared structure says about implications.

    Two tiers of a family cannot hold together: ⟨{a, b}, ∅⟩. Under a copresence rule with exhaustivity, a
    tier of one family comes with a tier of each other: ⟨{a}, all tiers of the other families⟩. An entailment
    is ⟨{a}, {b}⟩.
    """
    exclusivity = [
        Sequent(frozenset(pair), frozenset()) for tiers in families.values() for pair in combinations(tiers, 2)
    ]
    exhaustivity = [
        Sequent(
            frozenset({tier}),
            frozenset(t for other in rule.families if other != name for t in families[other]),
        )
        for rule in copresence
        if rule.exhaustivity
        for name in rule.families
        for tier in families[name]
    ]
    entailed = [Sequent(frozenset({rule.antecedent}), frozenset({rule.consequent})) for rule in entailments]
    return Compiled(exclusivity, exhaustivity, entailed, [rule.families for rule in copresence])


def is_saturated(premises: Iterable[str], rule: Sequence[str], families: dict[str, tuple[str, ...]]) -> bool:
    """Whether `premises` touch all families of an admissibility rule, or none."""
    held = set(premises)
    touched = [bool(held & set(families[name])) for name in rule]
    return all(touched) or not any(touched)
