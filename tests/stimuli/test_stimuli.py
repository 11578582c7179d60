"""Reading data files, and saying what is wrong with them."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import mindscope
import pytest
from mindscope.stimuli import StimulusError, data_path, read_jsonl, read_records, sha256
from pydantic import BaseModel, ConfigDict, Field, field_validator

ROWS = [{"word": "café", "n": 1}, {"word": "ice\u2028cream", "n": 2.5}]
PLAIN = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()


class Row(BaseModel):
    model_config = ConfigDict(extra="forbid")

    word: str = Field(description="a word")
    n: float

    @field_validator("n")
    @classmethod
    def _small(cls, n: float) -> float:
        if n > 9:
            raise ValueError("at most nine")
        return n


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        b"\xef\xbb\xbf" + PLAIN,
        PLAIN.replace(b"\n", b"\r\n"),
        PLAIN.replace(b"\n", b"\r"),
        PLAIN.rstrip(b"\n"),
        PLAIN.replace(b"\n", b"\n\n  \n"),
    ],
    ids=["plain", "bom", "crlf", "cr", "no last newline", "blank lines"],
)
def test_encodings_of_the_same_rows_read_and_rewrite_the_same(tmp_path: Path, content: bytes):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    rows = read_jsonl(path)
    assert rows == ROWS
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())
    assert sha256(path) == hashlib.sha256(PLAIN).hexdigest()


def test_every_bad_line_is_named(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    bad = ['{"n": NaN}', '{"n": -Infinity}', '{"n": 1e999}', '{"n": 1, "n": 2}', "{", "[1]", "[" * 100_000]
    path.write_text("\n".join(["", '{"n": 1}', *bad]), encoding="utf-8")
    with pytest.raises(StimulusError) as caught:
        read_jsonl(path)
    message = str(caught.value)
    assert f"{path}: 7 faults." in message
    assert all(f"rows.jsonl:{number}: " in message for number in range(3, 10))
    assert "NaN" in message
    assert "duplicate keys: n" in message


def test_text_that_is_not_utf8_and_a_missing_file_are_sentences(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"word": "café"}'.encode("latin-1"))
    with pytest.raises(StimulusError, match=r"rows\.jsonl is not UTF-8 text \(byte 13\)"):
        read_jsonl(path)
    with pytest.raises(StimulusError, match=r"Cannot read .*absent"):
        read_jsonl(tmp_path / "absent.jsonl")


def test_records_report_each_field_with_line_found_and_allowed(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"word": "a", "n": 1}\n\n{"word": 7, "n": 10}\n{"nn": 1, "n": "x"}\n', encoding="utf-8")
    with pytest.raises(StimulusError) as caught:
        read_records(path, Row)
    assert str(caught.value).splitlines() == [
        f"{path}: 5 faults.",
        "  rows.jsonl:3.word: found 7; allowed: a word",
        "  rows.jsonl:3.n: found 10; allowed: at most nine",
        "  rows.jsonl:4.word: found nothing; allowed: a word",
        "  rows.jsonl:4.n: found 'x'; allowed: a valid number, unable to parse string as a number",
        "  rows.jsonl:4.nn: found 1; allowed: no such field, only word, n",
    ]


def test_a_long_value_is_cut_in_a_message(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"word": "a", "n": "x" * 10_000}), encoding="utf-8")
    with pytest.raises(StimulusError) as caught:
        read_records(path, Row)
    assert len(str(caught.value)) < 400


def test_data_is_found_from_any_directory(tmp_path: Path):
    code = "from mindscope.stimuli import data_path; print(data_path('pal50/pairs.jsonl'))"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert Path(found) == data_path("pal50/pairs.jsonl")
    assert Path(found).is_absolute()


@pytest.mark.parametrize("name", ["pal50/absent.jsonl", "../pyproject.toml", "/etc/hostname"])
def test_only_files_inside_data_are_found(name: str):
    with pytest.raises(StimulusError, match="There is no data file"):
        data_path(name)


def test_an_installed_copy_is_found_inside_the_package(tmp_path: Path):
    package = tmp_path / "mindscope"
    (package / "_data" / "pal50").mkdir(parents=True)
    (package / "_data" / "pal50" / "pairs.jsonl").write_text("", encoding="utf-8")
    for module in ("__init__.py", "errors.py", "validation.py", "stimuli.py"):
        shutil.copy(Path(mindscope.__file__).parent / module, package)
    code = "from mindscope.stimuli import data_path; print(data_path('pal50/pairs.jsonl'))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert Path(found) == (package / "_data" / "pal50" / "pairs.jsonl").resolve()
