"""When two words are the same."""

import pytest
from mindscope.answers import offers_several, same_word

SAME = [
    ("umbrella", "umbrella"),
    ("UMBRELLA", "umbrella"),
    ("Umbrella.", "umbrella"),
    ('"umbrella"', "umbrella"),
    ("\u201cumbrella\u201d", "umbrella"),
    ("**umbrella**", "umbrella"),
    ("`umbrella`!", "umbrella"),
    (" umbrella\n", "umbrella"),
    ("ice\u00a0cream", "ice cream"),
    ("ice \u2009 cream", "ice cream"),
    ("o\u2019clock", "o'clock"),
    ("ice\u2011cream", "ice-cream"),
    ("cafe\u0301", "caf\u00e9"),
    ("CAFE\u0301", "caf\u00e9"),
    ("STRASSE", "stra\u00dfe"),
    ("\ufb01sh", "fish"),
]
FORGIVEN = [
    ("umbrellas", "umbrella"),
    ("umbrella", "umbrellas"),
    ("an umbrella", "umbrella"),
    ("The Umbrellas.", "umbrella"),
    ("boxes", "box"),
    ("wishes", "wish"),
    ("churches", "church"),
    ("ladies", "lady"),
    ("boys", "boy"),
    ("potatoes", "potato"),
    ("pianos", "piano"),
    ("ice-cream", "ice cream"),
    ("ice creams", "ice-cream"),
]
DIFFERENT = [
    ("sock", "umbrella"),
    ("umbrella or sock", "umbrella"),
    ("umbrella, sock", "umbrella"),
    ("big umbrella", "umbrella"),
    ("umbrellastand", "umbrella"),
    ("umbrell", "umbrella"),
    ("cafe", "caf\u00e9"),
    ("cream", "ice cream"),
    ("icecream", "ice cream"),
    ("glas", "glass"),
    ("ladys", "lady"),
    ("men", "man"),
    ("", "umbrella"),
    ("...", "umbrella"),
    ("the", "umbrella"),
]
LOOK_ALIKES = [
    ("\uff55\uff4d\uff42\uff52\uff45\uff4c\uff4c\uff41", "umbrella"),
    ("umbr\u0435lla", "umbrella"),
    ("umb\u200brella", "umbrella"),
    ("\ufeffumbrella", "umbrella"),
    ("umbrella\u200d", "umbrella"),
]


@pytest.mark.parametrize(("a", "b"), SAME)
def test_case_and_edges_never_matter(a: str, b: str):
    assert same_word(a, b)
    assert same_word(b, a)
    assert same_word(a, b, "lenient")


@pytest.mark.parametrize(("a", "b"), FORGIVEN)
def test_lenient_forgives_article_plural_and_hyphen_and_strict_does_not(a: str, b: str):
    assert same_word(a, b, "lenient")
    assert same_word(b, a, "lenient")
    assert not same_word(a, b)


@pytest.mark.parametrize(("a", "b"), DIFFERENT + LOOK_ALIKES)
def test_other_words_are_other_words(a: str, b: str):
    assert not same_word(a, b)
    assert not same_word(b, a, "lenient")


def test_punctuation_alone_is_no_word():
    assert not same_word("...", "...")
    assert not same_word("", "", "lenient")


@pytest.mark.parametrize("text", ["umbrella or sock", "umbrella, sock", "umbrella/sock", "umbrella\nsock", "a and b"])
def test_several_candidates(text: str):
    assert offers_several(text)


@pytest.mark.parametrize("text", ["umbrella", "ice cream", "sword", "orchid", "sand", "umbrella\n"])
def test_one_candidate(text: str):
    assert not offers_several(text)
