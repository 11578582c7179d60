"""infereval itself, where it is installed, beside ours on random files: `compat` agrees with it to 1e-12."""

import json
import random

import pytest
from infereval_env.claims import REQUIRED, Claims, report_verdict
from infereval_env.files import write_evaluation, write_model
from infereval_env.formats import RsrTarget
from infereval_env.measures import measure_as_infereval, panel_agreement
from infereval_env.readings import take_readings
from infereval_env.structure import structure

infereval = pytest.importorskip("infereval")


def random_run(make_eta, make_benchmark, seed):
    rng = random.Random(seed)
    n, width = rng.randint(1, 30), rng.choice([1, 2, 4])
    names = [f"i{i}" for i in range(n)]
    panel = {name: "".join(rng.choices("GBA", (4, 4, 1), k=width)) for name in names}
    votes = {name: "".join(rng.choices("GBAEU", (5, 5, 1, 1, 1), k=5)) for name in names}
    roles = ("base-inference", "supporter", "defeater", "irrelevant-addition")
    benchmark, eta = make_benchmark(panel), make_eta(votes, panel)
    shapes = [
        {
            "premises": tuple(sorted(rng.sample("pqrst", rng.randint(0, 3)))),
            "conclusions": tuple(sorted(rng.sample("pqrst", rng.randint(0, 2)))),
            "tags": (rng.choice(roles),) if rng.random() < 0.7 else (),
        }
        for _ in names
    ]
    targets = [rng.choice([None, RsrTarget(X=("p",), A=("q",)), RsrTarget(X=("r",), A=("q",))]) for _ in names]
    benchmark = benchmark.model_copy(
        update={
            "items": tuple(
                item.model_copy(update={**shape, "rsr_target": target})
                for item, shape, target in zip(benchmark.items, shapes, targets, strict=True)
            )
        }
    )
    eta = eta.model_copy(
        update={"items": tuple(item.model_copy(update=shape) for item, shape in zip(eta.items, shapes, strict=True))}
    )
    return eta, benchmark


def theirs_of(tmp_path, eta, benchmark):
    from infereval.benchmark import Benchmark
    from infereval.evaluation import Evaluation

    write_evaluation(eta, tmp_path / "eta.json", compat=True)
    write_model(benchmark, tmp_path / "benchmark.json")
    return (
        Evaluation.model_validate_json((tmp_path / "eta.json").read_text(encoding="utf-8")),
        Benchmark.model_validate_json((tmp_path / "benchmark.json").read_text(encoding="utf-8")),
    )


@pytest.mark.parametrize("seed", range(40))
def test_metrics_and_structure(tmp_path, make_eta, make_benchmark, seed):
    from infereval import metrics
    from infereval.structure import run_all_checks

    eta, benchmark = random_run(make_eta, make_benchmark, seed)
    their_eta, their_benchmark = theirs_of(tmp_path, eta, benchmark)
    readings = take_readings(eta, benchmark, compat=True)
    ours = measure_as_infereval(readings)
    reference = metrics.consensus_reference(their_eta)
    pairs = [
        (ours.coverage, metrics.coverage(their_eta)),
        (ours.kappa_C, metrics.cohens_kappa(their_eta, reference)),
        (ours.kappa_C_margin_weighted, metrics.cohens_kappa(their_eta, reference, weights=metrics.margin_weight)),
        (ours.kappa_F, metrics.fleiss_kappa(their_eta)),
        (ours.kappa_F_margin_weighted, metrics.fleiss_kappa(their_eta, weights=metrics.margin_weight)),
        (ours.kappa_F_star, metrics.inter_analyst_fleiss(their_eta)),
    ]
    for one, other in pairs:
        assert one == (None if other is None else pytest.approx(other, abs=1e-12))
    report = run_all_checks(their_eta, their_benchmark)
    assert [
        (c.name, c.checked, c.ok, sorted(a.item_id for a in c.anomalies)) for c in structure(readings, compat=True)
    ] == [(c.name, c.items_checked, c.items_satisfying, sorted(a.item_id for a in c.anomalies)) for c in report.checks]


@pytest.mark.parametrize("seed", range(10))
def test_panels(tmp_path, make_eta, make_benchmark, seed):
    from infereval import metrics

    rng = random.Random(seed)
    panel = {f"i{i}": "".join(rng.choices("GBA", (4, 4, 2), k=5)) for i in range(20)}
    benchmark = make_benchmark(panel)
    analysts = tuple(a.model_copy(update={"panel": "X" if i < 3 else "Y"}) for i, a in enumerate(benchmark.analysts))
    benchmark = benchmark.model_copy(update={"analysts": analysts})
    _, theirs = theirs_of(tmp_path, make_eta({"i0": "G"}, panel), benchmark)
    ours = panel_agreement(benchmark, compat=True)
    assert ours.between == pytest.approx(metrics.cross_panel_kappa(theirs), abs=1e-12)
    for name, kappa in metrics.inter_analyst_fleiss_per_panel(theirs).items():
        assert ours.kappa_F_star[name] == pytest.approx(kappa, abs=1e-12)


def test_report_verdicts():
    from infereval.report import ConstructValidityClaims, compute_verdict

    rng = random.Random(0)
    names = REQUIRED["general_capacity"]
    for _ in range(300):
        data = {
            "mastery_sense": {"sense": "standing", "description": "d"},
            "scope": {"scope": rng.choice(list(REQUIRED)), "justification": "j"},
            "constitution": {"position": "evidence_of_mastery", "justification": "j"},
            "carving": {"acknowledges_carving_indexed": rng.random() < 0.7, "notes": rng.choice(["", "n"])},
            "competing_explanations": {name: rng.random() < 0.7 for name in names},
            "reliability": {
                "identity_criterion": {
                    "same_provider_model_id": True, "cross_update_identity_asserted": True, "same_scaffolding": True,
                    "unverifiable_caveats": "", "rationale": rng.choice(["", "r"]),
                }
            },
        }  # fmt: skip
        anomalies, kappa = rng.choice([0, 2]), rng.choice([0.9, 0.7, 0.3])
        words = {0.9: "is stable", 0.7: "is moderately stable", 0.3: "is substantively unstable"}
        labels = {0.9: "stable", 0.7: "moderately_stable", 0.3: "unstable"}
        theirs = compute_verdict(
            ConstructValidityClaims.model_validate(data),
            structure_report={"checks": [{"name": "c", "anomalies": [{}] * anomalies}]},
            retest_result={"test_retest_kappa": kappa, "stability_verdict": f"reliability {words[kappa]}"},
        )
        ours = report_verdict(
            Claims.model_validate_json(json.dumps(data)),
            anomalies=anomalies,
            retest_stability=labels[kappa],
            compat=True,
        )
        assert ours.label == theirs.label
