"""An exercise: what it asks, how an answer is judged, its hints and its solution."""

import dataclasses

from tapelab import runtime
from tapelab.exercises import checks, deadline, feedback, progress

import matplotlib.pyplot as plt
from IPython.display import Markdown, display

SECONDS = 20.0  # for an answer to return: many times what the slowest solution needs


@dataclasses.dataclass(eq=False)
class Exercise:
    """One exercise. In a notebook: `check(answer)`, `hint()`, `solution()`.

    Attributes:
        identifier: the notebook's number and the name in its module, such as "04.metric_off".
        title: a few words; the notebook's heading is ``### Exercise: title (minutes min)``.
        minutes: how long it takes, from 1 to 20.
        starter: the source of the notebook's cell, with `...` where the answer goes; its last statement is the check.
        solution_code: the source of a right answer, without the check.
        explanation: why it is right, Markdown.
        hints: graded, from a nudge to nearly the answer.
        checker: a `checks.Value` or `checks.Function`.
        wrong: pairs of wrong source code and the code of the feedback that it must get. The tests try them.
        beyond: whether it needs an idea that the text does not spell out.
        seconds: how long an answer may take.
    """

    identifier: str
    title: str
    minutes: int
    starter: str
    solution_code: str
    explanation: str
    hints: tuple[str, ...]
    checker: checks.Value | checks.Function
    wrong: tuple[tuple[str, str], ...]
    beyond: bool = False
    seconds: float = SECONDS
    _shown: int = dataclasses.field(default=0, init=False, repr=False)

    @property
    def name(self):
        """What the exercise is called in its module."""
        return self.identifier.partition(".")[2]

    def judge(self, *answer):
        """Return the `Feedback` for an answer; several arguments are judged as a tuple. Nothing is shown or saved."""
        given = answer[0] if len(answer) == 1 else answer
        try:
            with runtime.quiet_log():  # a wrong shape is told by the feedback; TensorFlow would log it as well
                return deadline.run(lambda: self.checker.judge(given), self.seconds)
        except deadline.TimeUp:
            return checks.timed_out(self.seconds)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # comparing ran the learner's code, which may raise anything, SystemExit too
            return feedback.of_error(error)

    def check(self, *answer):
        """Say what is right or wrong with an answer. Never raises, so that a notebook runs on."""
        result = self.judge(*answer)
        if result.verdict == feedback.RIGHT:
            text = f"{result.text} {self.explanation}".strip()
            progress.record(self.identifier)
        elif result.verdict == feedback.NOT_ATTEMPTED:
            text = (
                f"Put your answer in place of `...` and run the cell again. "
                f"Stuck? `exercises.{self.name}.hint()`; given up? `exercises.{self.name}.solution()`."
            )
        else:
            text = result.text
        display(dataclasses.replace(result, text=text))
        if result.picture is not None:
            figure = result.picture()
            display(figure)
            plt.close(figure)

    def hint(self):
        """Show the next hint, below those that were shown before."""
        self._shown = min(self._shown + 1, len(self.hints))
        shown = [f"**Hint {n} of {len(self.hints)}.** {text}" for n, text in enumerate(self.hints[: self._shown], 1)]
        if self._shown == len(self.hints):
            shown.append(f"That was the last one. `exercises.{self.name}.solution()` shows a solution.")
        display(Markdown("\n\n".join(shown)))

    def solution(self):
        """Show a solution with its explanation."""
        display(Markdown(f"```python\n{self.solution_code.strip()}\n```\n\n{self.explanation}"))
