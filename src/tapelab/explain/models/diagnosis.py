"""What `diagnose` answers: each variable's gradient, each layer's activations, as text, Markdown and a figure."""

import dataclasses
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tapelab.explain.causes import STATUSES, TRIED
from tapelab.explain.explanation import Explanation
from tapelab.explain.ground.lines import Line
from tapelab.explain.ground.rendering import Style, Told, listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclasses.dataclass(frozen=True, repr=False)
class VariableHealth(Explanation):
    """One trainable variable and its gradient: an `Explanation`, whose `code` is "" where nothing is known to be wrong.

    Attributes:
        name: the variable's path within the model.
        status: a key of `tapelab.explain.causes.STATUSES`.
        gradient_norm: the Euclidean norm of the gradient of the loss; NaN or infinity where the gradient is, None where
            there is none.
        weight_norm: the Euclidean norm of the variable's value.
        size: the number of elements.
        zeros: the share of the gradient's elements that are zero, from 0 to 1.
    """

    name: str = ""
    status: str = "fine"
    gradient_norm: float | None = None
    weight_norm: float = 0.0
    size: int = 0
    zeros: float = 0.0

    @property
    def ratio(self) -> float | None:
        """The gradient's norm over the weight's; None where one is missing or the weight is zero."""
        return None if self.gradient_norm is None or not self.weight_norm else self.gradient_norm / self.weight_norm

    @property
    def cause(self) -> tuple[str, Line | None, str, str]:
        """What variables with one cause have in common."""
        return (self.code, self.line, self.layer, self.fix)


@dataclasses.dataclass(frozen=True)
class LayerHealth:
    """The units of one layer of ReLUs on the batch.

    Attributes:
        layer: its name.
        activation: such as "relu".
        units: how many units it has.
        dead: the share of units that are flat for every example.
    """

    layer: str
    activation: str
    units: int
    dead: float

    def __str__(self) -> str:
        return f"{self.layer} ({self.activation}): {round(self.dead * self.units)} of {self.units} units dead"


@dataclasses.dataclass(frozen=True, repr=False)
class Diagnosis(Told):
    """The answer of `diagnose`. True in a condition if there is nothing to mend.

    Attributes:
        model: the model's name.
        loss: the loss's value on the batch; of a custom train_step with several, the first one's.
        batch: the number of examples.
        variables: a tuple of `VariableHealth`, in the model's order.
        layers: a tuple of `LayerHealth`, in the order in which they ran.
        scale: what the loss was multiplied with for mixed precision. The norms are those of the unscaled loss.
        notes: further sentences.
        step: what is wrong with what a step does with the gradients, "" where that was not looked at or nothing is.
        told: the names of the variables that the text is about; None for all.
    """

    model: str
    loss: float
    batch: int
    variables: tuple[VariableHealth, ...]
    layers: tuple[LayerHealth, ...] = ()
    scale: float = 1.0
    notes: tuple[str, ...] = ()
    step: str = ""
    told: frozenset[str] | None = None

    def __bool__(self) -> bool:
        return math.isfinite(self.loss) and not self.sick and not self.step and not self._dying

    @property
    def _dying(self) -> list[LayerHealth]:
        return [layer for layer in self.layers if layer.dead >= _DYING]

    def __getitem__(self, name: str) -> VariableHealth:
        """The `VariableHealth` of a variable by its path."""
        found = [one for one in self.variables if name in (one.name, f"{self.model}/{one.name}")]
        if not found:
            raise KeyError(f"{name!r}; the variables are {', '.join(one.name for one in self.variables)}")
        return found[0]

    @property
    def sick(self) -> tuple[VariableHealth, ...]:
        """The variables with something to mend, a tuple."""
        return tuple(one for one in self.variables if one.healthy is False)

    @property
    def heading(self) -> str:
        """The answer in a few words."""
        return f"{self._verdict}; loss {self.loss:.4g} on {self.batch} example{'s' * (self.batch != 1)}"

    @property
    def _verdict(self) -> str:
        count, sick = len(self.variables), len(self.sick)
        bad = "something to mend" if any(one.status == "fine" for one in self.sick) else "a bad gradient"
        who = f"{sick} of {count} variables {'have' if sick > 1 else 'has'}" if count > 1 else "its variable has"
        learns = f"all {count} variables learn" if count > 1 else "its variable learns"
        what = f"{who} {bad}" if sick else learns
        if not sick and (self.step or self._dying):
            what = f"all {count} variables get gradients, and "
            what += "the step hardly uses them" if self.step else str(self._dying[0])
        return f"{self.model}: {what}"

    def lines(self, style: Style) -> Iterator[str]:
        """The answer, part by part."""
        yield style.strong(self.heading)
        told = [one for one in self.variables if self.told is None or one.name in self.told]
        yield style.table([_HEAD, *map(_row, told)])
        groups = {}
        for one in (one for one in told if one.healthy is False):
            groups.setdefault(one.cause, []).append(one)
        for members in groups.values():
            first = members[0]
            names = listed([one.name for one in members])
            doubt = "" if all(one.certain for one in members) else " (probable)"
            yield style.strong(f"{names}: {first.code or first.status}") + style.text(doubt)
            yield from _story(style, first)
        if self.step:
            yield style.text(self.step)
        unwell = [str(layer) for layer in self.layers if layer.dead > 0]
        if unwell and self.told is None:
            yield style.text("Activations: " + "; ".join(unwell) + ".")
        for note in self.notes:
            yield style.text(note)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the gradient flow: the norm of each variable's gradient, the model's first one on top, on a log scale.

        Each status has a marker of its own, and is written beside it where it is not "fine". The weights' norms are
        grey bars. Gradients without a logarithm (none, zero, not finite) lie on the left or right edge, beyond
        a dotted line.

        Args:
            ax: the Matplotlib axes to draw into; a new figure by default.

        Returns:
            The axes. Their title is the finding.
        """
        from tapelab import plots  # with Matplotlib, which not everyone who asks has

        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots(figsize=(8.5, 1.6 + 0.27 * len(self.variables)), layout="constrained")
        norms = [one.gradient_norm for one in self.variables]
        shown = {i: math.log10(norm) for i, norm in enumerate(norms) if norm and math.isfinite(norm)}
        weights = {i: math.log10(one.weight_norm) for i, one in enumerate(self.variables) if one.weight_norm}
        spread = [value for value in (*shown.values(), *weights.values()) if math.isfinite(value)] or [0.0]
        low, high = min(spread) - 1.0, max(spread) + 1.0
        ax.plot(list(shown.values()), list(shown), color=plots.GREY, linewidth=0.8, zorder=1)
        if weights:
            ax.plot(list(weights.values()), list(weights), "|", color=plots.GREY, markersize=11, label="weight")
        places = [_place(norm, low, high) for norm in norms]
        for edge in {low, high}.intersection(places):  # off the scale
            ax.axvline(edge + (0.5 if edge == low else -0.5), color=plots.GREY, linestyle=":")
        for status, row in STATUSES.items():
            where = [i for i, one in enumerate(self.variables) if one.status == status]
            sizes = [places[i] for i in where]
            if where:
                colour = getattr(plots, row.colour)
                ax.plot(sizes, where, row.marker, color=colour, label=f"gradient: {status}", markersize=8, zorder=3)
            for place in zip(sizes, where, strict=True) if status != "fine" else ():
                ax.annotate(status, place, (8, 0), textcoords="offset points", va="center", fontsize=8)
        ax.set_yticks(range(len(norms)), [one.name for one in self.variables], fontsize=8)
        bad = ", ".join(dict.fromkeys(one.code if one.status == "fine" else one.status for one in self.sick))
        title = f"{self._verdict} ({bad})" if bad else self._verdict
        ax.set(xlabel="log10 of the Euclidean norm", title=title, xlim=(low - 0.3, high + 0.6))
        ax.set_ylim(len(norms) - 0.4, -0.6)  # the input on top
        ax.set_xticks([tick for tick in ax.get_xticks() if low + 0.5 < tick < high - 0.5])
        ax.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        return ax


def _place(norm: float | None, low: float, high: float) -> float:
    """Where a norm is drawn: what has no logarithm lies on an edge."""
    if norm is None or norm == 0:
        return low
    return math.log10(norm) if math.isfinite(norm) else high


def _story(style: Style, one: VariableHealth) -> Iterator[str]:
    if one.sentence:
        yield style.text(one.sentence)
    if one.line is not None:
        yield style.line(one.line, one.layer)
    elif one.layer:
        yield style.text(f"In layer {one.layer}.")
    if one.fix:
        yield style.text(TRIED[one.tried]) + style.block(one.fix)


_DYING = 0.25  # of the units of a layer: no longer chance
_HEAD = ("variable", "gradient", "norm", "weight", "ratio", "zeros", "cause")


def _row(one: VariableHealth) -> tuple[str, ...]:
    norm = "" if one.gradient_norm is None else _number(one.gradient_norm)
    ratio = "" if one.ratio is None else _number(one.ratio)
    zeros = "" if one.gradient_norm is None else f"{one.zeros:.0%}"
    return (one.name, one.status, norm, _number(one.weight_norm), ratio, zeros, one.code)


def _number(value: float) -> str:
    return f"{value:.1e}" if math.isfinite(value) and value else f"{value:g}"
