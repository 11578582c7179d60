"""The project's own pairs load as typed rows; the data's quality is tested with the data."""

from collections import Counter
from pathlib import Path

import pytest
from mindscope.paired_associates.pairs import WordPair, level_of, load_pairs
from mindscope.stimuli import StimulusError, read_records


def test_fifty_pairs_ten_a_level():
    pairs = load_pairs()
    assert Counter(pair.level for pair in pairs) == dict.fromkeys(["L0", "L25", "L50", "L75", "L100"], 10)
    assert len({word.lower() for pair in pairs for word in (pair.cue, pair.target)}) == 100
    assert len({pair.trcode for pair in pairs}) == 50


@pytest.mark.parametrize(
    ("similarity", "level"), [(0, "L0"), (0.25, "L25"), (0.5, "L50"), (1.0, "L100"), (0.125, "L12.5")]
)
def test_level_names(similarity: float, level: str):
    assert level_of(similarity) == level


def test_a_level_that_contradicts_the_similarity_is_a_fault(tmp_path: Path):
    path = tmp_path / "pairs.jsonl"
    row = '{"trcode": "L25_01", "level": "L25", "similarity": 0.5, "cue": "cat", "target": "sock "}\n'
    path.write_text(row, encoding="utf-8")
    with pytest.raises(StimulusError) as caught:
        read_records(path, WordPair)
    assert "pairs.jsonl:1.similarity: found 0.5; allowed: the similarity of level L25" in str(caught.value)
    assert "pairs.jsonl:1.target: found 'sock '; allowed: a word or phrase on one line" in str(caught.value)


def test_an_absent_file_is_a_sentence():
    with pytest.raises(StimulusError, match=r"no data file 'pal50/none\.jsonl'"):
        load_pairs("pal50/none.jsonl")
