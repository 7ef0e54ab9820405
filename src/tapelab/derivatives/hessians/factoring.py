"""Whether a loss's Hessian is less work by per-example factors (`factors`) than by a pass for each weight."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from tapelab.derivatives.examples.source_sites import Sites, find_factors, inputs_of, is_plain, units_of
from tapelab.derivatives.examples.variable_uses import Use
from tapelab.derivatives.first_order import with_calls_opened
from tapelab.derivatives.machinery.problem import Problem
from tapelab.process.tensorflow import tf


class Factoring(NamedTuple):
    """What a loss's graph showed.

    Attributes:
        batch: how many examples do not meet.
        chosen: the indices of the sources whose blocks come from factors.
        sizes: of each site, its elements for each example.
        elements: of the largest intermediate result.
    """

    batch: int
    chosen: tuple[int, ...]
    sizes: tuple[int, ...]
    elements: int


def survey(problem: Problem) -> tuple[Factoring | None, str]:
    """Look at a scalar function's graph. Returns how its Hessian is factored, or None and why it is not."""
    if not problem.facts.traceable:
        return None, "the function cannot be traced into a graph"
    if not problem.repeatable:
        return None, "the function draws random numbers, changes variables or calls Python"
    dtypes = {*problem.source_dtypes}
    if len(dtypes) > 1 or not dtypes <= {tf.float32, tf.float64}:
        return None, f"the sources are {', '.join(sorted(dtype.name for dtype in dtypes))}"
    found = []

    def trace(*tensors: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(problem.sources(tensors))
            (loss,) = with_calls_opened(problem, tensors)
        found.append(_best(problem, loss, problem.sources(tensors), tape))
        return []

    try:
        problem.traced(trace)
    except LookupError as error:  # the body of a function that is called is not found
        return None, f"the function's graph cannot be looked into: {error}"
    return found[-1]


def _best(
    problem: Problem, loss: tf.Tensor, sources: Sequence[tf.Tensor | tf.Variable], tape: tf.GradientTape
) -> tuple[Factoring | None, str]:
    """Take the number of examples with which the Hessian is the least work."""
    uses, missing = find_factors(loss, sources)
    fit = [index for index in range(len(sources)) if index not in missing]
    if not fit:
        index, no_rule = next(iter(missing.items()))
        return None, f"{problem.source_names[index]} is used where there is no rule: {no_rule}"
    best: tuple[float, Factoring | None] = (0.0, None)
    why = "a pass for each weight is less work"
    outputs = [use.output.shape for index in fit for use in uses[index]]
    batches = sorted({shape[0] for shape in outputs if shape.rank and shape[0] is not None})
    if 0 in batches:
        return None, "there is no example"
    for batch in batches:
        sites, chosen, reason = _settled(problem, loss, uses, fit, batch, tape)
        if sites is None or not chosen:
            why = reason or why
            continue
        saved = _work_saved(problem, sites, chosen)
        if saved > best[0]:
            sizes = tuple(site.size for site in sites.sites)
            best = saved, Factoring(batch, chosen, sizes, _largest(sites, problem.source_sizes))
    return best[1], why


def _settled(
    problem: Problem, loss: tf.Tensor, uses: list[list[Use]], fit: Sequence[int], batch: int, tape: tf.GradientTape
) -> tuple[Sites | None, tuple[int, ...], str | None]:
    """Drop the sources that do not fit, or that have more units than elements, until all do."""
    chosen, sizes = list(fit), problem.source_sizes
    reason: str | None = None
    while chosen:
        sites = Sites(loss, uses, chosen, batch, tape)
        if sites.coupled:
            return None, (), f"examples are not proved independent, because of {sites.coupled}"
        dropped = set(sites.unfit)
        if sites.unfit:
            index, why = next(iter(sites.unfit.items()))
            reason = f"{problem.source_names[index]}: {why}"
        for site in sites.sites:
            if site.size > sum(sizes[index] for index in {index for index, _ in site.uses}):
                dropped |= {index for index, _ in site.uses}
        if not dropped:
            break
        chosen = [index for index in chosen if index not in dropped]
    if chosen and sites.custom and not _in_order(sites, chosen, len(sizes)):
        return None, (), "there is a custom gradient, and sources are not listed in the order of their use"
    return sites, tuple(chosen), reason


def _in_order(sites: Sites, chosen: Sequence[int], count: int) -> bool:
    """Whether every block is computed from the row of its first source, as without factors.

    With a gradient that is not the function's own, a matrix of second derivatives need not be symmetric.
    """
    order = [index for site in sites.sites for index, _ in site.uses]
    spans = [{index for index, _ in site.uses} for site in sites.sites]
    rising = all(max(one) < min(other) for one, other in itertools.pairwise(spans))
    return rising and len(set(order)) == len(order) and list(chosen) == list(range(count - len(chosen), count))


def _work_saved(problem: Problem, sites: Sites, chosen: Sequence[int]) -> float:
    """How much less work factors are than a pass for each element: multiplications and additions, about."""
    sizes, batch, passes = problem.source_sizes, sites.batch, 0.0
    for site in sites.sites:
        passes += sum(6 * batch * (site.size // units_of(use)) * sizes[index] for index, use in site.uses) / 2
    work = passes * sum(site.size for site in sites.sites)
    for number, first in enumerate(sites.sites):
        for second in sites.sites[number:]:
            rows = sum(sizes[index] * (first.size // units_of(use)) for index, use in first.uses)
            columns = sum(sizes[index] for index, _ in second.uses)
            work += 2 * batch * rows * columns
            if not (is_plain(first) and is_plain(second)):
                work += 8 * batch * first.size * columns  # built, and moved about
            elif first is not second:
                work += 2 * batch * rows * columns  # the second term is a product of its own
    return passes * sum(sizes[index] for index in chosen) - work


def _largest(sites: Sites, sizes: Sequence[int]) -> int:
    """Elements of the largest tensor on the way to a block, beside the block itself."""
    found = [0]
    for number, first in enumerate(sites.sites):
        for second in sites.sites[number:]:
            if is_plain(first) and is_plain(second):
                found.append(sites.batch * max(inputs_of(first) * inputs_of(second), first.size * second.size))
            else:
                found.append(3 * sites.batch * first.size * max(sizes[index] for index, _ in second.uses))
    return max(found)
