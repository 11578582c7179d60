"""The conversation as a state machine: from a design and the replies so far, what is sent next, byte for byte.

It drives verifiers' legacy `MultiTurnEnv`, the v1 `Env` and the tests. What was sent is never changed afterwards, so
that a server which keeps prefixes reads each turn only once. Study turns are answered by the script unless the model is
asked to, and cost no call: the first call of a plain session holds the whole study phase and the first cue.
"""

from mindscope.answers import without_reasoning

from pal50.design import Design, Step, StudyStep, SumStep, TestStep
from pal50.scoring import Judge, Reply
from pal50.wording import Chat, Transcript, feedback, scripted_reply

Message = dict[str, str]
"""`role` and `content`."""


class Session:
    """A participant's conversation as far as it has gone. `prompt` is what the next call sends, `answer` goes on.

        session = Session(design)
        while not session.finished:
            session.answer(ask_the_model(session.prompt))
        score(design, session.replies)

    In style `completion` the prompt is one message of role `text`: the transcript so far.
    """

    def __init__(self, design: Design) -> None:
        self.design = design
        self.replies: list[Reply] = []
        self._raw = design.settings.style == "completion"
        self._wording = (Transcript if self._raw else Chat)(design)
        self._judge = Judge(design)
        by_model = design.settings.study_replies == "model"
        self._awaited = [place for place, step in enumerate(design.steps) if by_model or isinstance(step, TestStep)]
        self._sent = self._until_next(self._wording.opening())
        if design.system is not None:
            self._sent.insert(0, {"role": "system", "content": design.system})
        self._opening = len(self._sent)

    @property
    def finished(self) -> bool:
        return len(self.replies) == len(self._awaited)

    @property
    def awaited(self) -> Step:
        """The step that the next reply is to."""
        return self.design.steps[self._awaited[len(self.replies)]]

    @property
    def prompt(self) -> list[Message]:
        """The whole prompt of the next call."""
        if self._raw:
            return [{"role": "text", "content": "".join(message["content"] for message in self._sent)}]
        return list(self._sent)

    def gold(self) -> Reply:
        """The right reply to the awaited step."""
        step = self.awaited
        if isinstance(step, TestStep):
            return Reply(text=self._wording.answer(self.design.pairs[step.pair].target), finish_reason="stop")
        return Reply(text=scripted_reply(step), finish_reason="stop")

    @property
    def after_opening(self) -> list[Message]:
        """The conversation from the first reply on."""
        return self._sent[self._opening :]

    def answer(self, reply: Reply) -> None:
        """Take the reply to the awaited step, and go on to the next."""
        step = self.awaited
        self.replies.append(reply)
        self._sent.append({"role": "assistant", "content": self._kept(reply)})
        if not self.finished:
            self._sent += self._until_next(self._feedback(step, reply))

    def _until_next(self, lead: str) -> list[Message]:
        """The turns from the last awaited step, exclusive, to the next; `lead` opens the first of them."""
        number = len(self.replies)
        first = self._awaited[number - 1] + 1 if number else 0
        *scripted, awaited = self.design.steps[first : self._awaited[number] + 1]
        if self._raw:
            lead = ("\n" if number else "") + lead
            text = lead + "".join(self._text(step) for step in (*scripted, awaited))
            return [{"role": "text", "content": text}]
        messages: list[Message] = []
        for step in scripted:
            messages.append({"role": "user", "content": lead + self._text(step)})
            messages.append({"role": "assistant", "content": scripted_reply(step)})
            lead = ""
        return [*messages, {"role": "user", "content": lead + self._text(awaited)}]

    def _text(self, step: Step) -> str:
        match step:
            case StudyStep():
                return self._wording.study(step)
            case SumStep():
                return self._wording.addition(step)
            case TestStep():
                return self._wording.test(step)

    def _kept(self, reply: Reply) -> str:
        """What of a reply stays in the conversation."""
        text = reply.text or ""
        if self._raw:
            return text.partition("\n")[0]
        return text if self.design.settings.keep_reasoning else without_reasoning(text) or ""

    def _feedback(self, step: Step, reply: Reply) -> str:
        settings = self.design.settings
        if settings.feedback == "none" or not isinstance(step, TestStep):
            return ""
        correct = self._judge.accepts(step.pair, self._judge.read(reply), settings.match)
        said = feedback(self.design.pairs[step.pair], correct, show=settings.feedback == "corrective")
        return said + ("\n" if self._raw else "\n\n")


def gold_replies(design: Design) -> list[Reply]:
    """The replies of a participant who recalls everything, with full confidence."""
    session = Session(design)
    while not session.finished:
        session.answer(session.gold())
    return session.replies
