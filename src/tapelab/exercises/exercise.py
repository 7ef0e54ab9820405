"""An exercise: what it asks, how an answer is judged, its hints and its solution."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

from tapelab import process
from tapelab.exercises import checks, deadline, feedback, progress, source

import matplotlib.pyplot as plt
from IPython.display import Markdown, display

SECONDS = 20.0  # for an answer to return: many times what the slowest solution needs


@dataclasses.dataclass(eq=False)
class Exercise:
    """One exercise. In a notebook: `check(answer)`, `hint()`, `solution()`; in a sheet, the decorators.

    Attributes:
        title: a few words; the notebook's heading is ``### Exercise: title (minutes min)``.
        minutes: how long it takes, from 1 to 20.
        hints: graded, from a nudge to nearly the answer.
        checker: a `checks.Value`, a `checks.Function` or a `checks.Repair`.
        beyond: whether it needs an idea that the text does not spell out.
        seconds: how long an answer may take.
        explanation: why the right answer is right, Markdown: its docstring.
    """

    title: str
    minutes: int
    hints: tuple[str, ...]
    checker: checks.Value | checks.Function
    beyond: bool = False
    seconds: float = SECONDS
    explanation: str = dataclasses.field(default="", init=False, repr=False)
    _shown: int = dataclasses.field(default=0, init=False, repr=False)

    def starter(self, name: str = "") -> Callable[[Callable], Callable]:
        """Decorate what the notebook's cell shows, with `...` where the answer goes.

        Args:
            name: what the learner's function is called. Without a name the function's body is the cell, and what it
                returns is what is checked. Of a `Repair` that is the diagnosis, still `...`, and the broken function.
        """

        def keep(function: Callable) -> Callable:
            self._starter, self._called = function, name
            if isinstance(self.checker, checks.Repair):
                self.checker = dataclasses.replace(self.checker, broken=function()[1])
            return function

        return keep

    def right(self, function: Callable) -> Callable:
        """Decorate a right answer, in the starter's form. Its docstring says why it is right; `solution` shows both."""
        self._right, self.explanation = function, source.prose(function)
        return function

    def mistake(self, code: str) -> Callable[[Callable], Callable]:
        """Decorate a function that makes a mistake. Who gives an answer with the same results is told its docstring.

        The docstring says what went wrong and where to look, in Markdown, and does not tell the answer.

        Args:
            code: a short stable key.
        """

        def keep(function: Callable) -> Callable:
            described = (*self.checker.mistakes, checks.Mistake(code, source.prose(function), function))
            self.checker = dataclasses.replace(self.checker, mistakes=described)
            return function

        return keep

    def wrong(self, code: str) -> Callable[[Any], Any]:
        """Decorate a further wrong answer.

        Args:
            code: the feedback that it must get: a mistake's, or a general one such as "transpose".
        """

        def keep(answer: Any) -> Any:
            self.checker = dataclasses.replace(self.checker, wrong=(*self.checker.wrong, (code, answer)))
            return answer

        return keep

    @functools.cached_property
    def identifier(self) -> str:
        """The sheet's name and the exercise's name in it, such as "recording_control.metric_off"."""
        sheet = inspect.unwrap(self._starter).__globals__
        name = next(name for name, value in sheet.items() if value is self)
        module = sheet["__name__"].removeprefix("tapelab.exercises.sheets.")
        return f"{module.partition('.')[0]}.{name}"  # a sheet may be a folder

    @property
    def name(self) -> str:
        """What the exercise is called in its module."""
        return self.identifier.partition(".")[2]

    @property
    def mistakes(self) -> tuple[checks.Mistake, ...]:
        """All mistakes that it knows, those of a diagnosis first."""
        diagnosed = self.checker.diagnosis.mistakes if isinstance(self.checker, checks.Repair) else ()
        return (*diagnosed, *self.checker.mistakes)

    @property
    def right_answer(self) -> Any:
        """A right answer: the function, or what the solution's cell gives to `check`."""
        return self._right if self._called else self._right()

    @property
    def heading(self) -> str:
        """The line above the exercise in its notebook."""
        return f"### Exercise: {self.title} ({self.minutes} min)"

    @property
    def starter_code(self) -> str:
        """The source of the notebook's cell; its last statement is the check."""
        if self._called:
            text, checked = f"{source.of_function(self._starter, self._called)}\n\n", self._called
        else:
            text, checked = source.of_body(self._starter)
        return f"{text}\nexercises.{self.name}.check({checked})"

    @property
    def solution_code(self) -> str:
        """The source of a right answer, without the check."""
        if self._called:
            return source.of_function(self._right, self._called)
        return source.of_body(self._right)[0].strip()

    def judge(self, *answer: Any) -> feedback.Feedback:
        """Return the `Feedback` for an answer; several arguments are judged as a tuple. Nothing is shown or saved."""
        given = answer[0] if len(answer) == 1 else answer
        try:
            with process.quiet_log():  # a wrong shape is told by the feedback; TensorFlow would log it as well
                return deadline.run(lambda: self.checker.judge(given), self.seconds)
        except deadline.TimeUp:
            return checks.timed_out(self.seconds)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # comparing ran the learner's code, which may raise anything, SystemExit too
            return feedback.of_error(error)

    def check(self, *answer: Any) -> None:
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
        elif result.verdict == feedback.WRONG:
            text = f"{result.text}\n\nStuck? `exercises.{self.name}.hint()`."
        else:
            text = result.text
        display(dataclasses.replace(result, text=text))
        if result.picture is not None:
            figure = result.picture()
            display(figure)
            plt.close(figure)

    def hint(self) -> None:
        """Show the next hint, below those that were shown before."""
        self._shown = min(self._shown + 1, len(self.hints))
        shown = [f"**Hint {n} of {len(self.hints)}.** {text}" for n, text in enumerate(self.hints[: self._shown], 1)]
        if self._shown == len(self.hints):
            shown.append(f"That was the last one. `exercises.{self.name}.solution()` shows a solution.")
        display(Markdown("\n\n".join(shown)))

    def solution(self) -> None:
        """Show a solution with its explanation."""
        display(Markdown(f"```python\n{self.solution_code}\n```\n\n{self.explanation}"))
