import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from mindscope.errors import MindscopeError
from mindscope.report.figure import interval_plot
from mindscope.report.page import SAMPLES, render, samples, write_report
from mindscope.report.runs import read_run
from mindscope.report.summary import summarise
from mindscope.report.visible import visible
from mindscope.statistics import cluster_bootstrap, mean_interval, wilson

HOSTILE = (
    "<script>alert('x')</script><img src=http://evil.example/x.png onerror=alert(1)></pre></article>"
    "{{ 7 * 7 }} cat\u202egnp \u200b\u2066\ufeff\x1b[31m\x07 --> ]]> &lt; \U000e0041"
)


class Page(HTMLParser):
    """What a browser would build: elements with their attributes, and the text a reader sees."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._hidden = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._hidden += tag in ("style", "title")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("style", "title")
        self.text += " " if tag in ("td", "th") else ""

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text += data


@pytest.fixture
def hostile_page(write_run, make_row, tmp_path: Path) -> str:
    rows = [
        make_row(HOSTILE, HOSTILE, prompt=HOSTILE, reply=HOSTILE, target=HOSTILE, metrics={HOSTILE: 0.5}),
        make_row("b", call_error=HOSTILE),
        make_row("c", score_error=HOSTILE),
    ]
    return render(read_run(write_run(tmp_path, rows)))


def test_hostile_text_is_text(hostile_page: str) -> None:
    page = Page(hostile_page)
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "img", "iframe", "object", "embed", "link", "form", "base"}
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    assert "<script>alert('x')</script><img src=http://evil.example/x.png" in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert "&lt;" in page.text


def test_characters_that_hide_or_reorder_are_shown_as_code_points(hostile_page: str) -> None:
    raw = {char for char in hostile_page if char not in "\n\t" and visible(char) != char}
    assert raw == set()
    text = Page(hostile_page).text
    for code in ("U+202E", "U+200B", "U+2066", "U+FEFF", "U+001B", "U+0007", "U+E0041"):
        assert text.count(code) > 1
    assert "catU+202Egnp" in text


def test_the_page_loads_nothing(hostile_page: str) -> None:
    loading = ("src", "href", "xlink:href", "action", "data", "poster", "srcset", "background")
    links = {value for _, attrs in Page(hostile_page).elements for name, value in attrs.items() if name in loading}
    assert all(link.startswith("#") for link in links)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", hostile_page))
    assert "@import" not in hostile_page
    assert "default-src 'none'" in hostile_page


@pytest.mark.parametrize("text", ["plain", "naïve café", "日本語", "Ω≈ç√", "👍", "line\nbreak\ttab"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize("char", ["\u00a0", "\u00ad", "\u200d", "\u2028", "\u3164", "\ufe0f", "\ue000", "\r", "\x00"])
def test_what_cannot_be_seen_is_named(char: str) -> None:
    assert visible(f"a{char}b") == f"a⟨U+{ord(char):04X}⟩b"


def test_the_same_run_gives_the_same_bytes(writers, make_row, tmp_path: Path) -> None:
    rows = [make_row(f"i{i}", f"L{i % 3}", outcome=("correct", "wrong")[i % 2]) for i in range(20)]
    run = read_run(writers["v1"](tmp_path, rows))
    first, second = tmp_path / "first.html", tmp_path / "second.html"
    write_report(run, first)
    write_report(read_run(tmp_path / "traces.jsonl"), second)
    assert first.read_bytes() == second.read_bytes()


def test_the_page_says_what_the_summary_says(write_run, make_row, tmp_path: Path) -> None:
    rows = [make_row(f"i{i}", "L5", outcome="correct" if i < 3 else "wrong", seconds=10.0 + i) for i in range(4)]
    rows += [
        make_row("gone", "L25", call_error="upstream 500"),
        make_row("odd", "L25", score_error="nan reward"),
    ]
    folder = write_run(tmp_path, rows)
    file = next(folder.glob("*.jsonl"))
    file.write_text(file.read_text() + file.read_text()[:80])
    text = " ".join(Page(render(read_run(folder))).text.split())
    rate = wilson(3, 4)
    assert f"0.750 [{rate.low:.3f}, {rate.high:.3f}]" in text
    assert "Mean reward over 4 scored rollouts of 4 items" in text
    assert "6 rollouts recorded: 4 scored, 1 call and 1 score failed" in text
    assert "gone · L25 · call failed" in text
    assert "upstream 500" in text
    assert "odd · L25 · score failed" in text
    assert "1 half-written lines were skipped" in text
    assert "right answer: apple" in text
    assert "L25 0 undefined undefined 1 call and 1 score" in text
    assert re.search(r"reward i3 L5 13\.00 5 0\.000 i2 L5 12\.00", text)


def test_an_empty_run_has_a_page(write_run, tmp_path: Path) -> None:
    text = Page(render(read_run(write_run(tmp_path, [])))).text
    assert "undefined" in text
    assert "No rollout was recorded." in text


def test_very_long_messages_are_cut_and_say_so(write_run, make_row, tmp_path: Path) -> None:
    html = render(read_run(write_run(tmp_path, [make_row("a", reply="word " * 5_000)])))
    assert "… 5,000 more characters not shown" in html
    assert len(html) < 80_000


def test_samples_cover_every_outcome_whatever_the_order(writers, make_row, tmp_path: Path) -> None:
    rows = [make_row(f"right{i}") for i in range(40)]
    rows += [
        make_row("wrong", outcome="wrong"),
        make_row("none", outcome="omission"),
        make_row("x", call_error="e"),
    ]
    picked = []
    for name, ordered in (("as", rows), ("reversed", rows[::-1])):
        run = read_run(writers["v1"](tmp_path / name, ordered))
        picked.append([rollout.item for rollout in samples(run.rollouts, summarise(run))])
    assert picked[0] == picked[1]
    assert len(picked[0]) == len(set(picked[0])) == SAMPLES
    assert {"wrong", "none"} <= set(picked[0])
    assert "x" not in picked[0]
    assert picked[0][0] != "right0" or picked[0][3] != "right1"


def test_a_page_that_cannot_be_written_leaves_the_old_one(writers, make_row, tmp_path: Path) -> None:
    run = read_run(writers["v1"](tmp_path, [make_row("a")]))
    with pytest.raises(MindscopeError, match="cannot be written"):
        write_report(run, tmp_path / "no-such-folder" / "report.html")
    page = tmp_path / "report.html"
    page.write_text("old")
    write_report(run, page)
    assert page.read_text().startswith("<!doctype html>")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["configs", "report.html", "traces.jsonl"]


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_a_missing_extra_is_named(writers, make_row, tmp_path: Path, monkeypatch, missing: str) -> None:
    run = read_run(writers["v1"](tmp_path, [make_row("a")]))
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "mindscope.report.figure", raising=False)
    with pytest.raises(MindscopeError, match=re.escape("pip install 'mindscope[report]'")):
        write_report(run, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_the_figure_draws_every_row_and_only_what_is_known() -> None:
    rows = [
        ("known", wilson(3, 4)),
        ("no value", wilson(0, 0)),
        ("no interval", mean_interval([0.3], ["a"])),
        ("$\\frac{$ \u202e</svg>", wilson(1, 2)),
    ]
    svg = interval_plot(rows, axis="mean")
    assert svg.startswith("<svg")
    assert svg.count("</svg>") == 1
    for caption in ("known", "no value", "n 4", "n 0", "n 1", "n 2", "$\\frac{$"):
        assert f"<!-- {caption}" in svg
    assert "\u202e" not in svg
    assert svg == interval_plot(rows, axis="mean")


def test_the_figure_widens_for_rewards_beyond_0_and_1() -> None:
    beyond = cluster_bootstrap([-1.0, 3.0, 2.0], ["a", "b", "c"])
    assert "<!-- 1.0 -->" in interval_plot([("rate", wilson(1, 2))], axis="mean")
    assert "<!-- 3 -->" in interval_plot([("reward", beyond)], axis="mean")
