"""`mindscope infereval …`: the instrument's files and measures from the command line.

Exit codes: 0 all is well; 1 the thing asked about does not hold (a fault, a violation, no equivalence); 2 bad
input. With `--json` a command prints one JSON document on stdout and nothing else there; warnings go to
stderr and are in the document too.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from mindscope.errors import MindscopeError
from mindscope.stimuli import read_text

from infereval_env import bearers, run_commands, survey_commands
from infereval_env.audit import audit
from infereval_env.checklist import review
from infereval_env.checks import benchmark_warnings
from infereval_env.claims import read_claims
from infereval_env.equivalence import MARGIN, Equivalence, equivalence, equivalence_as_infereval
from infereval_env.files import read_benchmark, read_evaluation, read_json, write_evaluation, write_model
from infereval_env.formats import (
    Benchmark,
    benchmark_hash,
    dump,
    elicitation_hash,
    reference_hash,
)
from infereval_env.guard import OVERLAP_FLOOR, compare, compare_as_infereval
from infereval_env.measures import (
    ARITIES,
    THIN_MARGIN,
    arity,
    cells,
    measure,
    measure_as_infereval,
    panel_agreement,
)
from infereval_env.monotonicity import ladders, variations
from infereval_env.output import (
    Again,
    BenchmarkPath,
    ClaimsPath,
    Compat,
    EtaPath,
    Json,
    Other,
    Setup,
    SomeBenchmark,
    estimate,
    joined,
    number,
    show,
    warn,
)
from infereval_env.readings import Reading, belonging_warnings, refuse_trained, take_readings
from infereval_env.retest import retest_series
from infereval_env.rollouts import evaluation_of_run, is_run
from infereval_env.runlog import rebuild
from infereval_env.structure import structure

app = typer.Typer(help="Whether a model endorses the inferences that experts endorse.", no_args_is_help=True)
app.add_typer(survey_commands.app, name="survey")
app.command()(run_commands.evaluate)
app.command()(run_commands.report)

Vary = Annotated[list[str] | None, typer.Option("--vary", help="An axis on which the runs are meant to differ.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The file to write.")]


By = Literal["arity", "tag", "target", "ladder", "variation"]
_GROUPS: dict[By, Callable[[Reading], Iterable[str]]] = {
    "arity": lambda reading: [arity(reading)],
    "tag": lambda reading: reading.tags,
    "target": lambda r: [f"{','.join(r.rsr_target.X)} / {','.join(r.rsr_target.A)}"] if r.rsr_target else [],
    "ladder": lambda reading: [reading.ladder] if reading.ladder else [],
    "variation": lambda reading: [reading.variation or "unspecified"],
}


@app.command()
def validate(
    path: Annotated[Path, typer.Argument(help="A benchmark or an evaluation.")], as_json: Json = False
) -> None:
    """Check a benchmark or an evaluation; every fault is listed, and what is probably not meant is a
    warning."""
    kind = _kind(path)
    try:
        part = read_benchmark(path) if kind == "benchmark" else read_evaluation(path)
    except MindscopeError as error:
        faults = [line.strip() for line in str(error).splitlines()[1:]]
        show(
            {"path": str(path), "kind": kind, "valid": False, "faults": faults, "warnings": []},
            as_json,
            [str(error)],
        )
        raise typer.Exit(1) from error
    warnings = benchmark_warnings(part) if isinstance(part, Benchmark) else []
    warn(warnings)
    document = {"path": str(path), "kind": kind, "valid": True, "faults": [], "warnings": warnings}
    show(document, as_json, [f"{path}: a valid {kind}, {len(part.items)} items"])


@app.command()
def describe(
    path: BenchmarkPath,
    items: Annotated[bool, typer.Option("--items", help="List every item.")] = False,
    as_json: Json = False,
) -> None:
    """Say what a benchmark holds: bearers, panel, items by arity and role, hashes, agreement within the
    panel."""
    benchmark = read_benchmark(path)
    panels = panel_agreement(benchmark)
    sizes = Counter(ARITIES[min(len(item.conclusions), 2)] for item in benchmark.items)
    document: dict[str, Any] = {
        "id": benchmark.id,
        "title": benchmark.title,
        "domain": benchmark.domain,
        "n_bearers": len(benchmark.bearers),
        "n_analysts": len(benchmark.analysts),
        "n_items": len(benchmark.items),
        "arity": {name: sizes[name] for name in ARITIES},
        "ordinal_families": {name: list(tiers) for name, tiers in benchmark.ordinal_families.items()},
        "ladders": sorted({item.ladder for item in benchmark.items if item.ladder}),
        "benchmark_hash": benchmark_hash(benchmark),
        "elicitation_hash": elicitation_hash(benchmark),
        "reference_hash": reference_hash(benchmark),
        "panels": panels.model_dump(),
        "warnings": benchmark_warnings(benchmark),
    }
    if items:
        document["items"] = [dump(item) for item in benchmark.items]
    lines = [f"{key}: {value}" for key, value in document.items() if key not in ("warnings", "items")]
    lines += [
        f"{item.id}: {', '.join(item.premises) or '∅'} ⇒ {', '.join(item.conclusions) or '∅'}"
        for item in (benchmark.items if items else ())
    ]
    warn(benchmark_warnings(benchmark))
    show(document, as_json, lines)


@app.command("import-bearers")
def import_bearers(
    bearers_path: Annotated[Path, typer.Argument(help="A bearers file.", metavar="BEARERS")],
    items_path: Annotated[Path, typer.Argument(help="The items document.", metavar="ITEMS")],
    output: Output = None,
    compat: Compat = False,
    as_json: Json = False,
) -> None:
    """Make a benchmark of a bearers file and an items document."""
    declared = bearers.parse_bearers(read_text(bearers_path), str(bearers_path), compat=compat)
    benchmark = bearers.build_benchmark(declared, bearers.read_items(items_path), str(items_path), compat=compat)
    if output is not None:
        write_model(benchmark, output)
    warn(benchmark_warnings(benchmark))
    if output is None:
        show(dump(benchmark), True, [])
    else:
        written = {
            "path": str(output),
            "n_items": len(benchmark.items),
            "benchmark_hash": benchmark_hash(benchmark),
        }
        show(written, as_json, [f"{output}: {len(benchmark.items)} items"])


@app.command("rebuild")
def rebuild_command(
    log: Annotated[Path, typer.Argument(help="A run.jsonl, or a verifiers run of infereval_env.")],
    benchmark_path: Annotated[Path, typer.Option("--benchmark", help="The benchmark that was run.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The evaluation to write.")],
    run_id: Annotated[str | None, typer.Option(help="Which run, where the log holds several.")] = None,
    setup: Setup = None,
    reparse: Annotated[bool, typer.Option(help="Read every reply anew by the strict rule.")] = False,
    compat: Compat = False,
    as_json: Json = False,
) -> None:
    """Make the evaluation that a run's log adds up to."""
    benchmark = read_benchmark(benchmark_path)
    if is_run(log):
        eta, _, warnings = evaluation_of_run(log, setup, benchmark)
    else:
        eta, warnings = rebuild(log, benchmark, run_id=run_id, reparse=reparse)
    warnings += write_evaluation(eta, output, compat=compat)
    n_items, no_data = len(eta.items), sum(item.model_verdict == "no_data" for item in eta.items)
    warn(warnings)
    document = {
        "path": str(output), "id": eta.id, "n_items": n_items, "n_no_data": no_data, "warnings": warnings,
    }  # fmt: skip
    show(document, as_json, [f"{output}: {n_items} items, {no_data} of them without data"])


@app.command()
def metrics(
    eta_path: Annotated[Path, typer.Argument(help="An evaluation (JSON), or a verifiers run of infereval_env.")],
    benchmark_path: SomeBenchmark = None,
    reference: Annotated[
        str, typer.Option(help="`consensus`, or `analyst:` and an id or a position counted from 0.")
    ] = "consensus",
    by: Annotated[By | None, typer.Option(help="Agreement within groups of items as well.")] = None,
    setup: Setup = None,
    seed: Annotated[int, typer.Option(help="Seed of the intervals' resampling.")] = 0,
    compat: Compat = False,
    as_json: Json = False,
) -> None:
    """Coverage, agreement against the panel's own agreement, and the implication frame of a run."""
    eta, benchmark, warnings = joined(eta_path, benchmark_path, compat, setup)
    refuse_trained(eta)
    if compat:
        numbers = measure_as_infereval(take_readings(eta, compat=True))
        shown = ("n", "coverage", "kappa_C", "kappa_F", "kappa_F_star", "kappa_C_margin_weighted")
        show(numbers, as_json, [f"{name}: {getattr(numbers, name)}" for name in shown])
        return
    readings = take_readings(eta, benchmark)
    analyst = _analyst(reference, benchmark)
    found = measure(readings, analyst=analyst, seed=seed)
    groups = cells(readings, _GROUPS[by], analyst=analyst) if by else {}
    document = {**found.model_dump(mode="json"), "warnings": warnings}
    if by:
        document["by"] = {name: cell.model_dump(mode="json") for name, cell in groups.items()}
    estimates = (
        "coverage", "kappa_C", "kappa_F_star", "kappa_C_minus_kappa_F_star", "kappa_F", "ac1", "ac1_panel",
        "alpha", "alpha_panel",
    )  # fmt: skip
    lines = [
        f"{found.n_items} items, {found.n_no_data} without data; {found.calls_answered} calls answered, "
        f"{found.calls_failed} failed, {found.calls_unparseable} unparseable; reference: {found.reference}",
        *(f"{name:27} {estimate(getattr(found, name))}" for name in estimates),
        *(
            f"{name:27} kappa_C {number(cell.kappa_C)} on {cell.n_substantive} of {cell.n_items} items"
            f"{', under-powered' if cell.under_powered else ''}"
            for name, cell in {**found.arity, **groups}.items()
        ),
    ]
    show(document, as_json, lines)


@app.command("compare")
def compare_command(
    a: EtaPath,
    b: EtaPath,
    vary: Vary = None,
    floor: Annotated[float, typer.Option(help="Least share of items with both runs substantive.")] = OVERLAP_FLOOR,
    compat: Compat = False,
    as_json: Json = False,
) -> None:
    """Two runs item by item, refused unless they differ on nothing but the axes that `--vary` names."""
    one, other = read_evaluation(a), read_evaluation(b)
    if compat:
        numbers = compare_as_infereval(one, other, floor=floor)
        shown = ("n_items", "n_both_substantive", "cross_run_kappa", "mean_tv", "insufficient_overlap")
        show(numbers, as_json, [f"{name}: {getattr(numbers, name)}" for name in shown])
        return
    found = compare(one, other, vary=vary or (), floor=floor)
    estimates = ("kappa", "kappa_three_valued", "flips", "coverage_a", "coverage_b")
    warn(found.warnings)
    lines = [
        f"{found.n_items} items, {found.n_no_data} without data in a run; mean TV {number(found.mean_tv)}",
        *(f"{name:27} {estimate(getattr(found, name))}" for name in estimates),
    ]
    show(found, as_json, lines)


@app.command("retest")
def retest_command(
    baseline: EtaPath,
    later: Annotated[list[Path], typer.Argument(help="One or more later runs.")],
    benchmark_path: SomeBenchmark = None,
    compat: Compat = False,
    as_json: Json = False,
) -> None:
    """Test-retest reliability (R22) of later runs against a baseline."""
    benchmark = read_benchmark(benchmark_path) if benchmark_path else None
    runs = [read_evaluation(path) for path in later]
    found = retest_series(read_evaluation(baseline), runs, benchmark, compat=compat)
    lines = []
    for pair in found.pairs:
        waited = "after an unknown interval" if pair.interval_s is None else f"after {pair.interval_s} s"
        lines += [
            f"{pair.run_b}, {waited}: {pair.stability}",
            f"  kappa {estimate(pair.kappa)}",
            f"  kappa_three_valued {estimate(pair.kappa_three_valued)}",
            f"  flips {estimate(pair.flips)}: {', '.join(c.item_id for c in pair.flipped) or 'none'}",
        ]
        warn(pair.warnings)
    show(found, as_json, lines)


@app.command("equivalence")
def equivalence_command(
    a: EtaPath,
    b: EtaPath,
    vary: Vary = None,
    margin: Annotated[float, typer.Option(help="The total variation that does not matter.")] = MARGIN,
    compat: Compat = False,
    as_json: Json = False,
) -> None:
    """Whether two templates (or what `--vary` names) give the same verdicts; exits 1 unless they do."""
    one, other = read_evaluation(a), read_evaluation(b)
    if compat:
        gate = equivalence_as_infereval(one, other, threshold=margin)
        state = "passed" if gate.passed else "failed"
        show(
            gate,
            as_json,
            [f"{state}: largest TV {gate.max_tv:.3f}; {len(gate.under_powered)} items under-powered"],
        )
        raise typer.Exit(0 if gate.passed else 1)
    found = equivalence(one, other, vary=vary or ("template",), margin=margin)
    warn(found.warnings)
    show(found, as_json, _equivalence_lines(found))
    raise typer.Exit(0 if found.verdict == "equivalent" else 1)


@app.command()
def monotonicity(
    eta_path: EtaPath, benchmark_path: BenchmarkPath, compat: Compat = False, as_json: Json = False
) -> None:
    """Whether verdicts move one way along each ladder; exits 1 when one does not."""
    eta, benchmark, warnings = joined(eta_path, benchmark_path, compat)
    readings = take_readings(eta, benchmark, compat=compat)
    found = ladders(readings, compat=compat)
    roles = variations(readings)
    document = {
        "ladders": [ladder.model_dump(mode="json") for ladder in found],
        "variations": [row.model_dump(mode="json") for row in roles],
        "warnings": warnings,
    }
    lines = [
        f"{ladder.ladder or '-'} {ladder.family}{f' at {ladder.fixed}' if ladder.fixed else ''}: "
        f"{ladder.sequence} {ladder.status}{' (flat)' if ladder.flat else ''}"
        for ladder in found
    ]
    lines += [f"{r.variation}: {r.good} good, {r.bad} bad, {r.abstain} abstain, {r.no_data} no data" for r in roles]
    show(document, as_json, lines)
    raise typer.Exit(1 if any(ladder.status == "violated" for ladder in found) else 0)


@app.command("structure")
def structure_command(
    eta_path: EtaPath,
    benchmark_path: BenchmarkPath,
    thin_margin: Annotated[float, typer.Option(help="Margin below which a verdict is thin.")] = THIN_MARGIN,
    compat: Compat = False,
    as_json: Json = False,
) -> None:
    """Whether a run hangs together by the roles its items were built for."""
    eta, benchmark, warnings = joined(eta_path, benchmark_path, compat)
    found = structure(take_readings(eta, benchmark, compat=compat), thin_margin=thin_margin, compat=compat)
    lines = []
    for check in found:
        lines.append(f"{check.name}: {check.ok} of {check.checked}")
        lines += [f"  {a.item_id}: expected {a.expected}, found {a.found}" for a in check.anomalies]
    show({"checks": [check.model_dump() for check in found], "warnings": warnings}, as_json, lines)


@app.command("audit")
def audit_command(eta_path: EtaPath, compat: Compat = False, as_json: Json = False) -> None:
    """What a run may be hiding: failures stored as abstentions, verdicts that do not follow; exits 1 if
    so."""
    found = audit(read_evaluation(eta_path), compat=compat)
    lines = [
        f"{found.scanned} samples, {found.known} failed; items without data: {found.no_data or 'none'}",
        f"coverage {number(found.coverage)}, without suspects {number(found.recomputed_coverage)}",
        f"kappa_C {number(found.kappa_C)}, without suspects {number(found.recomputed_kappa_C)}",
        *(f"suspected: {s.item_id} sample {s.sample_index} {s.why}" for s in found.suspected),
        *(f"misread: {m.item_id} sample {m.sample_index} {m.recorded}, declares {m.declared}" for m in found.misread),
        *(f"mismatched: {m.item_id} {m.recorded}, votes {m.voted}" for m in found.mismatched),
    ]
    show({**found.model_dump(mode="json"), "clean": found.clean}, as_json, lines)
    raise typer.Exit(0 if found.clean else 1)


@app.command("checklist")
def checklist_command(
    eta_path: EtaPath,
    benchmark_path: BenchmarkPath,
    again: Again = None,
    other: Other = None,
    claims_path: ClaimsPath = None,
    compat: Compat = False,
    as_json: Json = False,
) -> None:
    """A reviewer's questions, answered as far as the files can tell; with claims, whether they are
    defensible."""
    eta, benchmark = read_evaluation(eta_path), read_benchmark(benchmark_path)
    refuse_trained(eta)
    warnings = belonging_warnings(eta, benchmark)
    warn(warnings)
    asked, verdict = review(
        eta,
        benchmark,
        again=read_evaluation(again) if again else None,
        other=read_evaluation(other) if other else None,
        claims=read_claims(claims_path) if claims_path else None,
        compat=compat,
    )
    document = {
        "checklist": [line.model_dump() for line in asked],
        "verdict": verdict.model_dump() if verdict else None,
        "warnings": warnings,
    }
    show(document, as_json, [f"[{line.answer}] {line.question} {line.evidence}" for line in asked])


def _kind(path: Path) -> str:
    _, data = read_json(path)
    return "evaluation" if isinstance(data, dict) and "benchmark_id" in data else "benchmark"


def _analyst(reference: str, benchmark: Benchmark | None) -> int | None:
    """The position of the analyst named by `analyst:<id or position>`; None for the consensus."""
    if reference == "consensus":
        return None
    kind, _, name = reference.partition(":")
    if kind != "analyst" or not name:
        raise MindscopeError(f"--reference is `consensus` or `analyst:<id or position>`, not {reference!r}.")
    ids = [analyst.id for analyst in benchmark.analysts] if benchmark else []
    if name in ids:
        return ids.index(name)
    if name.isdecimal():
        return int(name)
    raise MindscopeError(
        f"There is no analyst {name!r}; " + (f"the ids are {ids}." if ids else "give --benchmark for ids.")
    )


def _equivalence_lines(found: Equivalence) -> list[str]:
    power = "" if found.power is None else f"; power if nothing differs {found.power:.2f}"
    return [
        f"{found.verdict}: {found.n_items} items, {found.n_untestable} untestable, margin {found.margin}",
        f"mean TV {number(found.mean_tv)}, by chance alone {number(found.mean_tv_expected_by_chance)}",
        f"upper bound on the root mean square TV {number(found.rms_tv_bound)}{power}",
        *(f"differs: {offender.item_id}, TV {offender.tv:.3f}" for offender in found.offenders),
    ]
