import json
import sys
from pathlib import Path

import pytest
import typer
from mindscope.cli.report import report
from mindscope.errors import MindscopeError
from mindscope.report.runs import read_run
from mindscope.report.summary import Summary, summarise
from typer.testing import CliRunner

app = typer.Typer()
app.command()(report)


@pytest.fixture
def folder(writers, make_row, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return writers["v1"](tmp_path / "run", [make_row("a"), make_row("b", outcome="wrong")])


def test_prints_the_table_and_writes_the_page(folder: Path) -> None:
    result = CliRunner().invoke(app, [str(folder)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "mean reward 0.500" in result.stdout
    assert "wrote report.html" in result.stdout
    assert Path("report.html").read_text().startswith("<!doctype html>")


def test_writes_where_it_is_told(folder: Path) -> None:
    assert CliRunner().invoke(app, [str(folder), "-o", "there.html"], catch_exceptions=False).exit_code == 0
    assert Path("there.html").exists()
    assert not Path("report.html").exists()


def test_json_is_all_of_standard_output_and_needs_no_extra(folder: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = CliRunner().invoke(app, [str(folder), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    assert Summary.model_validate(json.loads(result.stdout)) == summarise(read_run(folder))
    assert not Path("report.html").exists()


def test_json_with_a_page_prints_the_json_alone(folder: Path) -> None:
    result = CliRunner().invoke(app, [str(folder), "--json", "-o", "page.html"], catch_exceptions=False)
    assert json.loads(result.stdout)["scored"] == 2
    assert Path("page.html").exists()


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MindscopeError, match="no run here"):
        CliRunner().invoke(app, [str(tmp_path)], catch_exceptions=False)
