"""The grid of a lens: what it holds, its table, and its page, which hostile token text cannot break."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from mindscope.errors import MindscopeError
from mindscope.report.lens_grid import format_text, shown_token, write_grid
from mindscope.whitebox.activations import capture
from mindscope.whitebox.lens.grid import Cell, Grid, read_grid, token_text
from mindscope.whitebox.lens.lens import Lens
from mindscope.whitebox.lens.readout import Readout
from support.tiny_models import tiny_local

PROMPT = "the red car and\nthe house"


def test_a_grid_holds_the_readings_of_every_block_and_position() -> None:
    model = tiny_local("gemma2")
    lens = Lens.logit(model)
    grid = read_grid(model, lens, PROMPT, n=4)
    ids = model.encode(PROMPT)
    assert (grid.blocks, grid.positions) == ([0, 1, 2], list(range(len(ids))))
    assert "".join(grid.tokens) == "<bos>" + PROMPT
    assert grid.following == [*ids[1:], None]
    [found] = capture(model, [PROMPT], [0, 1, 2])
    for block, row in zip(grid.blocks, grid.cells, strict=True):
        reading = Readout(model, lens).top(block, found.values[block], 4)
        assert [cell.token_ids for cell in row] == reading.ids.tolist()
        for cell, logprobs in zip(row, reading.logprobs, strict=True):
            assert cell.probabilities == pytest.approx(logprobs.exp().tolist(), abs=1e-5)
            assert cell.tokens == [model.tokenizer.decode([i]) for i in cell.token_ids]


def test_chosen_blocks_and_positions() -> None:
    model = tiny_local("llama")
    whole = read_grid(model, Lens.logit(model), PROMPT)
    part = read_grid(model, Lens.logit(model), PROMPT, blocks=[2, 0], positions=[-1, 1])
    n = len(whole.positions)
    assert (part.blocks, part.positions, part.following) == ([0, 2], [n - 1, 1], [None, whole.following[1]])
    for i, block in enumerate(part.blocks):
        assert [c.token_ids for c in part.cells[i]] == [
            whole.cells[block][n - 1].token_ids,
            whole.cells[block][1].token_ids,
        ]
    with pytest.raises(MindscopeError, match="no position 99"):
        read_grid(model, Lens.logit(model), PROMPT, positions=[99])
    with pytest.raises(MindscopeError, match="block 5 does not exist"):
        read_grid(model, Lens.logit(model), PROMPT, blocks=[5])


def test_a_tokens_text_keeps_its_space() -> None:
    model = tiny_local("llama")
    assert token_text(model, model.encode("the red")[2]) == " red"
    assert token_text(model, 10**6) == ""


def test_blanks_and_invisible_characters_are_shown() -> None:
    assert shown_token(" red\n\t") == "␣red⏎⇥"
    assert shown_token("a\u202eb\x00\u200b") == "a⟨U+202E⟩b⟨U+0000⟩⟨U+200B⟩"
    assert shown_token("") == "∅"


HOSTILE = ["</td><script>alert(1)</script>", '" onmouseover="x', "\u202e\x1b[31m", "<img src=//x>", "&amp;", "]]>", ""]


def hostile_grid() -> Grid:
    cell = Cell(list(range(len(HOSTILE))), HOSTILE, [0.9, *[0.01] * (len(HOSTILE) - 1)])
    return Grid("m</title><script>", "J", [3, 7], [0, 5], ["<b>", "\u202e"], [0, None], [[cell, cell], [cell, cell]])


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_one_offline_file_that_no_token_can_break(tmp_path: Path) -> None:
    write_grid(hostile_grid(), tmp_path / "grid.html")
    page = (tmp_path / "grid.html").read_text(encoding="utf-8")
    seen = Tags()
    seen.feed(page)
    assert not {"script", "img", "link", "iframe", "a", "b>"} & set(seen.tags)
    assert not {name for name in seen.attributes if name.startswith("on") or name in ("src", "href")}
    assert "default-src 'none'" in page
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)
    assert seen.tags.count("td") == 4
    assert seen.tags.count("dd") == 4 * len(HOSTILE)
    assert page.count(' next"') == 2  # position 0 of both blocks: token 0 comes next there
    for shown in ("</td><script>alert(1)</script>", "⟨U+202E⟩⟨U+001B⟩[31m", "∅", "after␣block".replace("␣", " ")):
        assert shown in seen.text


def test_the_table_has_a_row_a_block() -> None:
    model = tiny_local("llama")
    grid = read_grid(model, Lens.logit(model), PROMPT, positions=[-1], n=3)
    lines = format_text(grid).splitlines()
    assert lines[0] == f"after position {len(model.encode(PROMPT)) - 1}, ␣house"
    assert [line.split()[0] for line in lines[1:]] == ["block", "0", "1", "2"]
    for line, row in zip(lines[2:], grid.cells, strict=True):
        assert f"{shown_token(row[0].tokens[0])} {row[0].probabilities[0]:.2f}" in line


def test_a_page_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(MindscopeError, match="cannot be written here"):
        write_grid(hostile_grid(), tmp_path / "no" / "grid.html")


def test_the_grid_as_json() -> None:
    found = hostile_grid().to_dict()
    assert [(r["block"], r["position"]) for r in found["readings"]] == [(3, 0), (3, 5), (7, 0), (7, 5)]
    assert found["readings"][0]["tokens"] == HOSTILE
    assert torch.tensor(found["readings"][0]["probabilities"]).argmax() == 0
