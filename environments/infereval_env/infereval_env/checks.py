"""What is wrong between the parts of a file (faults), and what is allowed but probably not meant (warnings).

`files.read_benchmark` and `read_evaluation` run the first and refuse the file; `benchmark_warnings` is the
second.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from infereval_env.formats import (
    Analyst,
    Benchmark,
    CopresenceRule,
    EntailmentRule,
    EvaluationItem,
    Ids,
    Item,
    MonotonicityStep,
    PluginBuilder,
    Regularity,
)

Part = TypeVar("Part", bound=BaseModel)


def survivors(model: type[Part], data: Any, key: str) -> list[tuple[int, Part]]:
    """The well-formed members of the list `data[key]` with their positions; the others are faults of
    shape."""
    found = []
    for position, member in enumerate(_list(data, key)):
        try:
            found.append((position, model.model_validate_json(json.dumps(member))))
        except ValidationError:
            continue
    return found


def _mapping(data: Any, key: str) -> dict[str, Any]:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}


def _list(data: Any, key: str) -> list[Any]:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, list) else []


def benchmark_faults(data: Any, items: list[tuple[int, Item]]) -> list[str]:
    """Faults between the parts of a benchmark. `data` may be malformed; `items` are its well-formed items."""
    families = {name: tiers for name, tiers in _mapping(data, "ordinal_families").items() if isinstance(tiers, list)}
    factors = {name: levels for name, levels in _mapping(data, "factors").items() if isinstance(levels, list)}
    known = _Known(
        bearers=_mapping(data, "bearers"),
        families=families,
        factors=factors,
        targets=_list(data, "targets"),
        n_analysts=len(_list(data, "analysts")),
    )
    return [
        *_repeated("item id", [item.id for _, item in items]),
        *_analyst_faults(data),
        *_rule_faults(data, known),
        *_factor_faults(data, known, [item for _, item in items]),
        *(f"items[{position}] {item.id!r} {fault}" for position, item in items for fault in _item_faults(item, known)),
    ]


class _Known(NamedTuple):
    """What items and rules may refer to."""

    bearers: dict[str, Any]
    families: dict[str, list[Any]]
    factors: dict[str, list[Any]]
    targets: list[Any]
    n_analysts: int


def _repeated(what: str, values: list[str]) -> Iterator[str]:
    for value, count in Counter(values).items():
        if count > 1:
            yield f"{what} {value!r}: used {count} times; each must be unique"


def _unknown(ids: tuple[str, ...], known: Mapping[str, Any]) -> list[str]:
    return [name for name in ids if name not in known]


def _analyst_faults(data: Any) -> Iterator[str]:
    analysts = [analyst for _, analyst in survivors(Analyst, data, "analysts")]
    yield from _repeated("analyst id", [analyst.id for analyst in analysts])
    panels = sorted({analyst.panel for analyst in analysts if analyst.panel is not None})
    without = [analyst.id for analyst in analysts if analyst.panel is None]
    if panels and without:
        yield f"analysts: {without} name no panel though others do; all must, or none"
    primary = data.get("primary_panel") if isinstance(data, dict) else None
    if isinstance(primary, str) and primary not in panels:
        yield f"primary_panel: found {primary!r}; the panels are {panels}"


def _rule_faults(data: Any, known: _Known) -> Iterator[str]:
    for name, tiers in known.families.items():
        if unknown := [tier for tier in map(str, tiers) if tier not in known.bearers]:
            yield f"ordinal_families {name}: {unknown} are not bearers"
    for name, bearer in known.bearers.items():
        family = bearer.get("ordinal_family") if isinstance(bearer, dict) else None
        if isinstance(family, str) and family not in known.families:
            yield f"bearers {name} ordinal_family: found {family!r}; families are {sorted(known.families)}"
    for position, rule in survivors(CopresenceRule, data, "copresence_rules"):
        if len(rule.families) < 2:
            yield f"copresence_rules[{position}]: found {list(rule.families)}; it takes two families or more"
        if unknown := _unknown(rule.families, known.families):
            yield f"copresence_rules[{position}]: {unknown} are not families"
    for position, entailment in survivors(EntailmentRule, data, "entailment_rules"):
        if unknown := _unknown((entailment.antecedent, entailment.consequent), known.bearers):
            yield f"entailment_rules[{position}]: {unknown} are not bearers"
    items = {str(item.get("id")): item for item in _list(data, "items") if isinstance(item, dict)}
    for position, regularity in survivors(Regularity, data, "regularities"):
        if unknown := _unknown(regularity.test_item_ids, items):
            yield f"regularities[{position}] test_item_ids: {unknown} are not items"
    prompt = _mapping(data, "verification_prompt").get("template")
    if isinstance(prompt, str):
        for slot in ("{premise_context}", "{conclusion_context}"):
            if slot not in prompt:
                yield f"verification_prompt template: {slot} is missing"


def _factor_faults(data: Any, known: _Known, items: list[Item]) -> Iterator[str]:
    for name in _mapping(data, "factor_kinds"):
        if name not in known.factors:
            yield f"factor_kinds {name}: the factors are {sorted(known.factors)}"
    least = _mapping(data, "factor_constraints").get("min_items_per_cell")
    if not isinstance(least, int) or not known.factors:
        return
    for levels in product(*known.factors.values()):
        cell = dict(zip(known.factors, levels, strict=True))
        held = sum(all(item.factor_levels.get(name) == cell[name] for name in cell) for item in items)
        if held < least:
            yield f"factors: the cell {cell} holds {held} items; factor_constraints asks for {least}"


def _item_faults(item: Item, known: _Known) -> Iterator[str]:
    goal = item.rsr_target
    for field, ids in (
        ("premises", item.premises),
        ("conclusions", item.conclusions),
        ("rsr_target", (*goal.X, *goal.A) if goal else ()),
    ):
        if unknown := _unknown(ids, known.bearers):
            yield f"{field}: {unknown} are not bearers"
    for field, given in (
        ("analyst_verdicts", item.analyst_verdicts),
        ("analyst_rationales", item.analyst_rationales),
    ):
        if given is not None and len(given) != known.n_analysts:
            yield f"{field}: found {len(given)}; there are {known.n_analysts} analysts"
    if item.target is not None and known.targets and item.target not in known.targets:
        yield f"target: found {item.target!r}; the targets are {known.targets}"
    for name, level in item.factor_levels.items():
        if name not in known.factors:
            yield f"factor_levels {name}: the factors are {sorted(known.factors)}"
        elif level not in known.factors[name]:
            yield f"factor_levels {name}: found {level!r}; the levels are {known.factors[name]}"
    if item.monotonicity_step is not None:
        yield from (f"monotonicity_step {fault}" for fault in _step_faults(item.monotonicity_step, known))


def _step_faults(step: MonotonicityStep, known: _Known) -> Iterator[str]:
    tiers = known.families.get(step.family)
    if tiers is None:
        yield f"family: found {step.family!r}; the families are {sorted(known.families)}"
    elif step.tier not in tiers:
        yield f"tier: found {step.tier!r}; the tiers of {step.family!r} are {tiers}"
    elif tiers.index(step.tier) != step.tier_index:
        yield f"tier_index: found {step.tier_index}; {step.tier!r} is at {tiers.index(step.tier)}"
    if step.fixed is not None and step.fixed not in known.bearers:
        yield f"fixed: {step.fixed!r} is not a bearer"


def evaluation_faults(items: list[tuple[int, EvaluationItem]]) -> list[str]:
    """Faults between the items of an evaluation, and between the fields of a sample."""
    faults = list(_repeated("item id", [item.id for _, item in items]))
    widths = Counter(len(item.analyst_verdicts) for _, item in items)
    if len(widths) > 1:
        usual = widths.most_common(1)[0][0]
        faults += [
            f"items[{position}] {item.id!r} analyst_verdicts: found {found}; the other items have {usual}"
            for position, item in items
            if (found := len(item.analyst_verdicts)) != usual
        ]
    for position, item in items:
        place = f"items[{position}] {item.id!r}"
        indices = [str(sample.sample_index) for sample in item.samples]
        faults += [f"{place} {fault}" for fault in _repeated("sample_index", indices)]
        for sample in item.samples:
            probabilities = (sample.label_probabilities or {}).values()
            if any(p < 0 for p in probabilities) or sum(probabilities) > 1 + 1e-6:
                faults.append(f"{place} sample {sample.sample_index} label_probabilities: not probabilities")
            if sample.parsed_verdict is None and not sample.failed:
                faults.append(f"{place} sample {sample.sample_index} parsed_verdict: null, yet the call did not fail")
    return faults


def benchmark_warnings(benchmark: Benchmark) -> list[str]:
    """What is allowed in a benchmark and is probably a mistake, or will limit what can be measured."""
    found = [f"item {item.id!r} {warning}" for item in benchmark.items for warning in _item_warnings(item, benchmark)]
    seen: dict[tuple[Ids, Ids], str] = {}
    directions: dict[tuple[str | None, str, str | None], set[str]] = {}
    for item in benchmark.items:
        same = seen.setdefault((item.premises, item.conclusions), item.id)
        if same != item.id:
            found.append(f"item {item.id!r} asks the same implication as {same!r}")
        if step := item.monotonicity_step:
            directions.setdefault((item.ladder, step.family, step.fixed), set()).add(step.expected)
    for (ladder, family, _), expected in directions.items():
        if len(expected) > 1:
            found.append(f"ladder {ladder!r} ({family}): its steps disagree on the expected direction")
    builders = benchmark.context_builders
    for side, builder in (("premise", builders.premise), ("conclusion", builders.conclusion)):
        if isinstance(builder, PluginBuilder):
            found.append(f"the {side} context builder {builder.plugin!r} is code; it is not run here")
    if benchmark.verification_prompt and benchmark.verification_prompt.parse_regex:
        found.append("verification_prompt parse_regex is for compat; otherwise replies are parsed strictly")
    silent = [
        analyst.id
        for position, analyst in enumerate(benchmark.analysts)
        if not any(item.analyst_verdicts[position] in ("good", "bad") for item in benchmark.items)
    ]
    if silent and benchmark.items:
        found.append(f"analysts {silent} gave no substantive verdict; agreement with them cannot be computed")
    return found


def _item_warnings(item: Item, benchmark: Benchmark) -> Iterator[str]:
    if not item.premises and not item.conclusions:
        yield "has neither premises nor conclusions; it is in no implication frame"
    step = item.monotonicity_step
    if (item.variation == "monotonicity_step") != (step is not None):
        yield "has a variation and a monotonicity_step that disagree on whether it is a step of a ladder"
    if step is not None and step.tier not in item.premises:
        yield f"has a monotonicity tier, {step.tier!r}, that is not among its premises"
    for rule in benchmark.copresence_rules:
        present = {name for name in rule.families if set(benchmark.ordinal_families.get(name, ())) & set(item.premises)}
        if present and present != set(rule.families):
            absent = sorted(set(rule.families) - present)
            yield f"has a tier of {sorted(present)} but none of {absent}, which must come together"
