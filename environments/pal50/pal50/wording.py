"""Every text a participant sees, for the two styles and for the replay of a card.

A chat is a list of turns; a completion is one transcript, whose every line of study or test has the same form, so that
a base model can go on with it. Its test lines end in the opening tag, and the reply is the rest of the line.
"""

from collections.abc import Sequence

from mindscope.answers import same_word
from mindscope.errors import MindscopeError

from pal50.design import Design, Pair, Step, StudyStep, SumStep, TestStep

ACKNOWLEDGEMENT = "OK"
"""The scripted answer to a study turn."""

_STUDY_FIRST = (
    "This is a memory test. You will study pairs of words{lists}. Later you will be shown one word of a pair and asked "
    "for the other.{updates} Reply OK to each pair.\n\n"
)
_LISTS = ", in two lists"
_UPDATES = " A word may be paired again with another; the last one counts."
_NO_STUDY = (
    "This is a test of word pairs. You will be shown one word of a pair and asked for the other. The pairs are not "
    "shown beforehand.\n\n"
)
_ONE = "Study this pair{of_list}: {pairs}"
_SEVERAL = "Study these pairs{of_list}:\n{pairs}"
_SUM = "What is {} + {}? Reply with the number."
_ASK = "{in_list}hich word was {last}paired with {cue}?"
_ANSWER = "\nGive that word, or your best guess, or pass if you have none, in exactly this form:\n<recall>...</recall>"
_CONFIDENCE = (
    "\nThen give your confidence, from 1 (none) to 6 (complete), in exactly this form:\n<confidence>...</confidence>"
)

_EXAMPLES = (("gondola", "parsley"), ("quill", "parchment"))
_REPLACED_EXAMPLE = ("gondola", "trellis")
_LINE_STUDY = "Study{list}: {first} - <recall>{second}</recall>\n"
_LINE_SUM = "Sum: {} + {} = {}\n"
_LINE_TEST = "Test{back}{list}: {cue} - <recall>"


class Chat:
    """The user's turns."""

    def __init__(self, design: Design) -> None:
        self._settings = design.settings
        self._pairs = design.pairs

    def opening(self) -> str:
        if self._settings.render == "psychscanner":
            return ""
        if self._settings.study == "none":
            return _NO_STUDY
        return _STUDY_FIRST.format(
            lists=_LISTS if self._settings.n_lists == 2 else "",
            updates=_UPDATES if self._settings.updates > 1 else "",
        )

    def study(self, step: StudyStep) -> str:
        if step.stimulus is not None:
            return step.stimulus
        pairs = [self._pairs[place] for place in step.pairs]
        text = _ONE if len(pairs) == 1 else _SEVERAL
        of_list = f" of list {self._number(pairs[0])}" if self._settings.n_lists == 2 else ""
        return text.format(of_list=of_list, pairs="\n".join(map(shown, pairs)))

    def addition(self, step: SumStep) -> str:
        return _SUM.format(*step.addends)

    def test(self, step: TestStep) -> str:
        pair = self._pairs[step.pair]
        in_list = f"In list {self._number(pair)}, w" if self._settings.n_lists == 2 else "W"
        last = "last " if self._settings.updates > 1 else ""
        question = step.stimulus or _ASK.format(in_list=in_list, last=last, cue=pair.cue)
        return question + _ANSWER + (_CONFIDENCE if self._settings.asks_confidence else "")

    def answer(self, word: str) -> str:
        """The reply that gives this word, with full confidence."""
        confidence = "\n<confidence>6</confidence>" if self._settings.asks_confidence else ""
        return f"<recall>{word}</recall>{confidence}"

    def _number(self, pair: Pair) -> int:
        return self._settings.lists.split("-").index(pair.list) + 1


class Transcript:
    """The lines of a completion."""

    def __init__(self, design: Design) -> None:
        self._settings = design.settings
        self._pairs = design.pairs

    def opening(self) -> str:
        """Two pairs studied and tested the way the list will be; with `study="none"` too, so that only the list's own
        study is missing there."""
        first, second = _EXAMPLES
        studied = [*([_REPLACED_EXAMPLE] if self._settings.updates > 1 else []), first, second]
        lines = [self._study_line(*pair, "") for pair in studied]
        back = {"forward": (False, False), "backward": (True, True), "both": (False, True)}[self._settings.direction]
        for (one, other), backward in zip(_EXAMPLES, back, strict=True):
            cue, target = (other, one) if backward else (one, other)
            lines += [self._test_line(cue, backward, ""), self.answer(target), "\n"]
        return "".join([*lines, "\n"])

    def study(self, step: StudyStep) -> str:
        pairs = [self._pairs[place] for place in step.pairs]
        return "".join(self._study_line(pair.first, pair.second, self._list(pair)) for pair in pairs)

    def addition(self, step: SumStep) -> str:
        return _LINE_SUM.format(*step.addends, sum(step.addends))

    def test(self, step: TestStep) -> str:
        pair = self._pairs[step.pair]
        return self._test_line(pair.cue, pair.direction == "backward", self._list(pair))

    def answer(self, word: str) -> str:
        """The rest of a test line that gives this word."""
        return f"{word}</recall>"

    def _study_line(self, first: str, second: str, name: str) -> str:
        return _LINE_STUDY.format(list=name, first=first, second=second)

    def _test_line(self, cue: str, backward: bool, name: str) -> str:
        return _LINE_TEST.format(back=" back" if backward else "", list=name, cue=cue)

    def _list(self, pair: Pair) -> str:
        if self._settings.n_lists == 1:
            return ""
        return f" list {self._settings.lists.split('-').index(pair.list) + 1}"


def check_examples(pairs: Sequence[Pair]) -> None:
    """Raises `MindscopeError` when a list shares a word with the worked example of a completion."""
    examples = [word for pair in (*_EXAMPLES, _REPLACED_EXAMPLE) for word in pair]
    for pair in pairs:
        for word in (pair.first, pair.second):
            if any(same_word(word, example, "lenient") for example in examples):
                raise MindscopeError(
                    f"The list has the word {word!r} ({pair.trcode}), which the worked example of "
                    f"style='completion' uses too; use style='chat' or another word."
                )


def scripted_reply(step: Step) -> str:
    """What the script answers in the participant's place to anything but a test."""
    return str(sum(step.addends)) if isinstance(step, SumStep) else ACKNOWLEDGEMENT


def shown(pair: Pair) -> str:
    """A pair as it is studied."""
    return f"{pair.first} - {pair.second}"


def feedback(pair: Pair, correct: bool, show: bool) -> str:
    """What is said after a trial; with `show` a missed pair is shown again."""
    if correct:
        return "Right."
    return f"Wrong: the pair was {shown(pair)}." if show else "Wrong."
