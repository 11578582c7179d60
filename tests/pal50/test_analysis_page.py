"""The page, the document and the commands."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from mindscope.errors import MindscopeError
from mindscope.report.visible import visible
from pal50.analysis import Analysis, Source, analyse, format_text, write_analysis
from pal50.analysis.page import render
from pal50.commands import app
from pal50.paradigm import Settings, gold_replies, trials
from support.item_rows import neighbour, perfect, random_subject, recency, refuser, session, sessions
from typer.testing import CliRunner

HOSTILE = "<script>alert(1)</script><img src=http://evil.example/x onerror=a()>{{ 7 * 7 }}\u202egnp\u200b\x1b[31m $x^2$"


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._hidden = 0
        self.feed(html)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._hidden += tag in ("style", "title")

    def handle_endtag(self, tag):
        self._hidden -= tag in ("style", "title")
        self.text += " " if tag in ("td", "th", "p", "h1", "h2") else ""

    def handle_data(self, data):
        if not self._hidden:
            self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    rng = np.random.default_rng(0)
    subject = random_subject(rng, slope=2, participant_sd=0.5, confidence=lambda r, p, ok: 1 + int(5 * p))
    confused = [row for row in sessions(neighbour, 3) if row.level == "L0"]
    rows = [row for row in sessions(subject, 3) if row.level != "L0"] + confused
    return analyse(
        [
            Source("first", rows, model="m"),
            Source("guess", sessions(random_subject(rng, base=-2), 3, study="none"), model="m"),
        ]
    )


@pytest.fixture(scope="module")
def html(analysis) -> str:
    return render(analysis)


def test_the_page_has_every_section_figure_and_table(html):
    page = Page(html)
    titles = ("Accuracy", "What became of the trials", "Study position", "Lag", "Output order", "Learning")
    for title in (*titles, "Intrusions", "Confidence", "Regression", "What study adds to guessing"):
        assert title in page.text
    # the run: accuracy, 3 curves, 2 of intrusions, calibration, regression; its control: 3; the contrast: 1
    assert page.count("figure") == page.count("svg") == 8 + 3 + 1


def test_the_page_and_the_text_say_the_same_numbers(analysis, html):
    text, page = format_text(analysis), Page(html).text
    for row in analysis.runs[0].accuracy:
        shown = f"{row.strict.value:.3f}"
        assert shown in text
        assert shown in page
    for sentence in ("Slope a step", "Mean distance", "McNemar's exact test", "Brier, stated", "AUROC2"):
        assert sentence in text
        assert sentence in page


def test_the_page_loads_nothing(html):
    loading = ("src", "href", "xlink:href", "action", "data", "poster", "srcset", "background")
    links = {value for _, attrs in Page(html).elements for name, value in attrs.items() if name in loading}
    assert all(link.startswith("#") for link in links)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))
    assert "default-src 'none'" in html


def test_hostile_names_are_text():
    rows = [
        row.model_copy(update={"level": HOSTILE + row.level, "trcode": HOSTILE + row.trcode, "list": HOSTILE})
        for row in sessions(neighbour, 2, n_pairs=10)
    ]
    rows = [row.model_copy(update={"intrusion_source": HOSTILE + row.intrusion_source}) for row in rows]
    found = analyse([Source(HOSTILE, rows, model=HOSTILE)])
    html = render(found)
    page = Page(html)
    assert not {tag for tag, _ in page.elements} & {"script", "img", "iframe", "object", "link"}
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert {char for char in html if char not in "\n\t" and visible(char) != char} == set()
    assert "<script>alert(1)</script>" in page.text
    assert {char for char in format_text(found) if char != "\n" and visible(char) != char} == set()


def test_the_same_analysis_gives_the_same_bytes(analysis, html, tmp_path):
    write_analysis(Analysis.model_validate_json(analysis.model_dump_json()), tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == html


@pytest.mark.parametrize(
    "rows",
    [
        session(perfect, n_pairs=5),
        session(refuser, n_pairs=5)[:1],
        sessions(recency(10), 2, order="card"),
        sessions(neighbour, 2, n_pairs=300),
        sessions(perfect, 2, study="none"),
        [row.model_copy(update={"level": f"level {row.trcode}"}) for row in sessions(neighbour, 2, n_pairs=20)],
    ],
    ids=["one participant", "one trial", "card", "300 pairs", "none", "twenty levels"],
)
def test_any_run_has_a_page_and_a_text(rows):
    found = analyse([Source("run", rows)])
    assert "nan" not in format_text(found).lower().replace("nancy", "")
    assert "nan" not in Page(render(found)).text.lower()
    json.loads(found.model_dump_json(), parse_constant=lambda name: pytest.fail(f"{name} in the document"))


def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(MindscopeError, match="cannot be written"):
        write_analysis(analyse([Source("run", session(perfect, n_pairs=5))]), tmp_path / "absent" / "page.html")


# ---- the document ----

ESTIMATE = {"value", "low", "high", "n", "clusters", "method"}
POINT = {"first", "last", "accuracy"}
CURVE = {"axis", "points", "slope", "note"}
SCORES = {"ece", "brier", "reliability", "resolution", "uncertainty"}
SCHEMA = {
    "Analysis": {"runs", "contrasts"},
    "RunAnalysis": {
        "name", "model", "study", "participants", "rollouts", "failed_rollouts", "trials", "buffers", "unreached",
        "accuracy", "outcomes", "serial_position", "lag", "output_order", "learning", "intrusions", "confidence",
        "regression", "tokens", "notes",
    },
    "Accuracy": {"factor", "value", "strict", "lenient", "cell", "design_effect"},
    "OutcomeCount": {"outcome", "count", "share", "by_level"},
    "SerialPosition": {"curve", "primacy", "recency"},
    "Curve": CURVE,
    "Point": POINT,
    "Intrusions": {"n", "confusions", "pairs", "levels_of_pairs", "levels", "by_level", "elsewhere", "gradient"},
    "Confusion": {"probed", "source", "count"},
    "Gradient": {
        "n", "distances", "mean_distance", "expected_mean_distance", "p", "from_earlier", "from_later", "shuffles",
        "note",
    },
    "Distance": {"first", "last", "count", "expected", "low", "high"},
    "Calibration": {
        "n", "without", "ratings", "overconfidence", "stated", "mapped", "auroc2", "gamma", "note",
    },
    "Rating": {"rating", "stated", "mapped", "accuracy"},
    "Scores": SCORES,
    "Regression": {
        "method", "why", "formula", "n", "participants", "pairs", "terms", "random_effects", "left_out", "cautions",
    },
    "Term": {"name", "unit", "log_odds", "odds_ratio"},
    "RandomEffect": {"name", "sd"},
    "Tokens": {"n", "input", "output"},
    "Contrast": {"kind", "first", "second", "same_participants", "differences", "left_out", "paired"},
    "Difference": {"value", "first", "second", "difference"},
    "PairedTest": {"n", "both", "only_first", "only_second", "neither", "p"},
    "Estimate": ESTIMATE,
}  # fmt: skip


def test_the_documents_fields_are_the_ones_that_scripts_know(analysis):
    schema = Analysis.model_json_schema()
    found = {name: set(part["properties"]) for name, part in schema["$defs"].items()}
    assert found | {"Analysis": set(schema["properties"])} == SCHEMA
    assert Analysis.model_validate(json.loads(analysis.model_dump_json())) == analysis


# ---- the commands ----


def recorded(folder: Path, arguments: dict, wrong: int = 0, model: str = "org/toy") -> Path:
    """A run as verifiers 0.3 leave it: all but the first `wrong` cues are recalled, and the last rollout failed."""
    folder.mkdir(parents=True)
    rows = []
    for trial in trials(Settings.parse(arguments)):
        replies = [reply.model_dump() for reply in gold_replies(trial.design)]
        for reply in replies[:wrong]:
            reply["text"] = "I don't remember."
        info = trial.model_dump(mode="json") | {"replies": replies}
        row = {
            "example_id": trial.participant,
            "prompt": [],
            "completion": [],
            "reward": 1.0,
            "metrics": {},
            "info": info,
        }
        rows.append(row)
    rows[-1]["error"] = {"error": "ModelError", "message": "upstream 500"}
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "metadata.json").write_text(json.dumps({"env_id": "pal50", "model": model}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> list[str]:
    root = tmp_path_factory.mktemp("runs")
    arguments = {"participants": 4, "n_pairs": 10}
    return [
        str(recorded(root / "full", arguments, wrong=3)),
        str(recorded(root / "none", arguments | {"study": "none"}, wrong=10)),
    ]


def test_analyse_prints_the_tables_and_writes_the_page(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["analyse", *folders], catch_exceptions=False)
    assert result.exit_code == 0
    assert "full · org/toy" in result.stdout
    assert "30 scored trials, 3 sessions, 3 participants." in result.stdout
    assert "1 rollouts failed and are in no number" in result.stdout
    assert re.search(r"omission +9 +0\.300", result.stdout)
    assert "What study adds to guessing: full minus none" in result.stdout
    assert "wrote analysis.html" in result.stdout
    assert Path("analysis.html").read_text().startswith("<!doctype html>")


def test_json_is_all_of_standard_output(folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["analyse", *folders, "--json", "-o", "page.html"], catch_exceptions=False)
    document = Analysis.model_validate(json.loads(result.stdout))
    overall = document.contrasts[0].differences[0]
    assert (overall.first.value, overall.second.value) == (0.7, 0.0)
    assert Path("page.html").exists()


def test_runs_of_one_name_are_told_apart_by_their_folders(folders, tmp_path):
    for place in ("a", "b"):
        recorded(tmp_path / place / "run", {"participants": 3, "n_pairs": 10})
    result = CliRunner().invoke(
        app, ["analyse", str(tmp_path / "a" / "run"), str(tmp_path / "b" / "run"), "--json"], catch_exceptions=False
    )
    assert [run["name"] for run in json.loads(result.stdout)["runs"]] == ["a/run", "b/run"]


def test_power_prints_a_plan():
    result = CliRunner().invoke(app, ["power", "0.95", "0.85"], catch_exceptions=False)
    assert "141 trials a group" in result.stdout
    as_json = CliRunner().invoke(app, ["power", "0.95", "0.85", "--trials", "50", "--json"], catch_exceptions=False)
    assert json.loads(as_json.stdout)["participants"] == 3


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(MindscopeError, match="no run here"):
        CliRunner().invoke(app, ["analyse", str(tmp_path)], catch_exceptions=False)
