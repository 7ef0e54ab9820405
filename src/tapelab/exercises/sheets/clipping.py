"""Exercises and predictions of the notebook "Clipping"."""

from tapelab.exercises import Exercise, Function, Prediction
from tapelab.exercises.sheets.custom_gradients import _value_and_gradient

import numpy as np
import tensorflow as tf

steps_cut = Prediction(
    "clipping.steps_cut",
    rtol=0.6,
    remarks=(
        (0, "Without the limit the run dies within a few steps, so the limit must act at least there."),
        (1, "One cut is not enough here: the steps after the first are too long as well, before the network settles."),
        (
            100,
            "Fewer. The gradients are long at the start; once the network has settled, nearly all of them are below "
            "the limit.",
        ),
        (
            200,
            "It would be all 200 if the gradients stayed as long as the first. They become short once the network has "
            "settled.",
        ),
    ),
)

clipped_norms = Prediction(
    "clipping.clipped_norms",
    remarks=(
        (
            [5.0, 6.5, 5.0, 6.5],
            "Globally, both are scaled by the same factor, also the one that is short enough by itself.",
        ),
        ([2.5, 6.0, 5.0, 6.5], "The two ways are exchanged: *by tensor* looks at one tensor at a time."),
        (
            [6.5, 6.5, 6.5, 6.5],
            "The limit is no target: by tensor 5 stays, and globally it holds for both together, not for each.",
        ),
        ([6.5, 6.5, 2.5, 6.0], "A norm of 5 is below the limit, and stays."),
        ([5.0, 6.5, 5.0, 12.0], "13, the norm of both together, is above the limit, though 5 is not."),
    ),
)

four_steps = Prediction(
    "clipping.four_steps",
    remarks=(
        (-0.1, "−0.1 is the end without clipping. The last gradient is 4, and the limit is 1."),
        (-0.2, "The size is right. A gradient of −1 raises $w$: descent goes against it."),
        (0.3, "Three steps up make 0.3. The fourth batch is cut to 1, not left out."),
        (0.0, "Three steps up and one down, all of the same length: they do not cancel."),
        (-0.025, "−0.025 would be one step along the mean. Each batch has a step of its own, and is cut by itself."),
    ),
)

nan_elements = Prediction(
    "clipping.nan_elements",
    remarks=(
        ([1, 0], "The scale factor is one number for all tensors, and it is that number which is no longer usable."),
        ([2, 0], "The scale factor is shared by *all* tensors, not by those of one alone."),
        (
            [0, 0],
            "The norm is infinite, so no scale factor is usable, and the function says so: NaN, in every element.",
        ),
    ),
)

step_in_the_table = Prediction(
    "clipping.step_in_the_table",
    remarks=(
        (1.0, "1 is the norm of the sixteen slices after clipping. They are added up after that."),
        (16.0, "16 is what arrives without clipping."),
        (0.25, "0.25 is the length of each clipped slice. The row receives sixteen of them."),
    ),
)

clip_gradient = Prediction(
    "clipping.clip_gradient",
    remarks=(
        (0.5, "0.5 is what leaves the clip. From there the gradient goes on to $v$, through the square."),
        (4.0, "4 is what the square makes of 1. Before that, the clip has made 0.5 of the 1."),
        (1.0, "1 is what arrives at the clip, which makes 0.5 of it."),
    ),
)


def _gradients(random, dtype):
    def gradients(*parts):
        return [tf.constant(part, dtype) for part in parts]

    return [
        (gradients([3.0, 4.0], [[12.0], [0.0], [0.0]]), 6.5),
        (gradients([0.3, 0.4], [[0.0], [1.2], [0.0]]), 6.5),
        (gradients([np.inf, 4.0], [[12.0], [0.0], [0.0]]), 6.5),
        (gradients([3.0, 4.0], [[12.0], [np.nan], [0.0]]), 6.5),
        (gradients([0.0, 0.0], [[0.0]]), 1.0),
        (
            gradients([0.8 * dtype.max**0.5, 3.0], [[0.8 * dtype.max**0.5]]),
            5.0,
        ),  # both norms are finite, the global is not
        (gradients([3e12, 4e12], [[0.0]]), 5.0),
        (gradients(random.normal(size=5), random.normal(size=(5, 6)), random.normal(size=6)), 0.2),
    ]


def _clip_or_skip(gradients, limit):
    with np.errstate(over="ignore"):
        norm = np.sqrt(sum(np.sum(np.square(g)) for g in gradients))
    if not np.isfinite(norm):
        return [tf.zeros_like(g) for g in gradients]
    return [g * min(1.0, limit / max(norm, 1e-30)) for g in gradients]


clip_or_skip = Exercise(
    title="Clip the step, or skip it",
    minutes=8,
    hints=(
        "`tf.clip_by_global_norm` returns two things, and the second is what to test: one bad element anywhere shows "
        "in it.",
        "`tf.math.is_finite` tests a tensor. Zeros must be put in the place of the clipped gradients; multiplying "
        r"them by 0 does not help, because $0 \cdot \mathrm{NaN}$ is NaN.",
        "For each clipped tensor: `tf.where(finite, g, tf.zeros_like(g))`, with `finite` made from the norm.",
    ),
    checker=Function(reference=_clip_or_skip, inputs=_gradients),
)


@clip_or_skip.starter("clip_or_skip")
def _(gradients, limit):
    return ...  # a list of tensors with the shapes of the gradients


@clip_or_skip.right
def _(gradients, limit):
    """One bad element makes the global norm infinite or NaN, and so does a finite one whose square overflows: the one
    test is enough for all tensors. `tf.where` picks, it does not multiply: a product of the NaN with 0 would be NaN
    again."""
    clipped, norm = tf.clip_by_global_norm(gradients, limit)
    finite = tf.math.is_finite(norm)
    return [tf.where(finite, g, tf.zeros_like(g)) for g in clipped]


@clip_or_skip.mistake("not_skipped")
def _(gradients, limit):
    """The clipping is right. With an infinity or a NaN among the gradients, NaN comes back: the step must be skipped
    then, with zeros."""
    clipped, norm = tf.clip_by_global_norm(gradients, limit)
    return clipped


@clip_or_skip.mistake("elements_tested")
def _(gradients, limit):
    """The elements are tested, or each tensor's norm. All of them can be finite where the *global* norm is not: then
    NaN comes back. Test that one."""
    if not all(np.all(np.isfinite(g)) for g in gradients):
        return [tf.zeros_like(g) for g in gradients]
    return tf.clip_by_global_norm(gradients, limit)[0]


@clip_or_skip.wrong("elements_tested")
def _(gradients, limit):
    if not all(np.isfinite(tf.norm(g)) for g in gradients):
        return [tf.zeros_like(g) for g in gradients]
    return tf.clip_by_global_norm(gradients, limit)[0]


@clip_or_skip.mistake("long_skipped")
def _(gradients, limit):
    """Right, but where the norm is large and finite: such a step is not skipped, but cut to the limit."""
    clipped, norm = tf.clip_by_global_norm(gradients, limit)
    return [tf.where(norm < 1e6, g, tf.zeros_like(g)) for g in clipped]


@clip_or_skip.mistake("both_results")
def _(gradients, limit):
    """`tf.clip_by_global_norm` returns two things: the list of clipped gradients, and the norm. You returned both."""
    return tf.clip_by_global_norm(gradients, limit)


@clip_or_skip.mistake("one_by_one")
def _(gradients, limit):
    """Each tensor is clipped by its own norm, which turned the direction. The limit is meant for all of them
    together."""
    if not np.isfinite(tf.linalg.global_norm(gradients)):
        return [tf.zeros_like(g) for g in gradients]
    return [tf.clip_by_norm(g, limit) for g in gradients]


@clip_or_skip.mistake("one_by_one_not_skipped")
def _(gradients, limit):
    """Each tensor is clipped by its own norm, which turned the direction: the limit is meant for all of them together.
    (And nothing is skipped yet.)"""
    return [tf.clip_by_norm(g, limit) for g in gradients]


@clip_or_skip.mistake("only_bad_elements")
def _(gradients, limit):
    """The bad elements became 0, and the step is taken with the rest. If one part of a gradient is not finite, how far
    can you trust the others? Skip the whole step."""
    gradients = [tf.where(tf.math.is_finite(g), g, tf.zeros_like(g)) for g in gradients]
    return tf.clip_by_global_norm(gradients, limit)[0]


@clip_or_skip.mistake("lengthened")
def _(gradients, limit):
    """A gradient shorter than the limit has been *lengthened* to it. Clipping leaves short gradients alone."""
    norm = tf.linalg.global_norm(gradients)
    if not np.isfinite(norm):
        return [tf.zeros_like(g) for g in gradients]
    return [g * limit / norm for g in gradients]


@clip_or_skip.mistake("by_value")
def _(gradients, limit):
    """Each *entry* is cut to the limit, which turned the direction. The limit is meant for the norm of all of them
    together."""
    if not np.isfinite(tf.linalg.global_norm(gradients)):
        return [tf.zeros_like(g) for g in gradients]
    return [tf.clip_by_value(g, -limit, limit) for g in gradients]


@clip_or_skip.wrong("not_skipped")
def _(gradients, limit):
    clipped, norm = tf.clip_by_global_norm(gradients, limit)
    finite = tf.cast(tf.math.is_finite(norm), norm.dtype)
    return [g * finite for g in clipped]


def _uses(random, dtype):
    def slices(rows, *indices):
        values = tf.constant(random.normal(size=(len(indices), 3)), dtype)
        return (tf.IndexedSlices(values, tf.constant(indices, tf.int64), tf.constant([rows, 3], tf.int64)),)

    return [slices(4, 0, 2, 0), slices(9, 7, 7, 7, 7), slices(10**12, 5, 10**11, 3, 5, 10**11), slices(6, 4, 1)]


def _rows_of(answer, slices):
    """The rows and their sums, in the rows' order, and how often each occurs."""
    found = answer(slices)
    if not isinstance(found, tf.IndexedSlices):
        raise TypeError(f"add_up returned {type(found).__name__}; expected tf.IndexedSlices")
    order = np.argsort(found.indices.numpy(), kind="stable")
    shape = None if found.dense_shape is None else [int(size) for size in found.dense_shape]
    return {
        "the rows": [int(row) for row in found.indices.numpy()[order]],
        "their slices": tf.gather(found.values, order),
        "the table's shape": shape,
    }


def _add_up(slices):
    rows, where = np.unique(slices.indices.numpy(), return_inverse=True)
    values = np.zeros((len(rows), slices.values.shape[1]))
    np.add.at(values, where, slices.values.numpy())
    return tf.IndexedSlices(tf.constant(values, slices.values.dtype), tf.constant(rows), slices.dense_shape)


one_slice = Exercise(
    title="One slice for each row",
    minutes=10,
    beyond=True,
    hints=(
        "`tf.unique` returns two things: which rows occur, and for each use its place among them.",
        "With that place as a number of a segment, adding up the uses of a row is adding up a segment. TensorFlow has "
        "sums over segments, sorted and unsorted.",
        "`tf.math.unsorted_segment_sum(values, where, number)`: `where` is what `tf.unique` returned second, and "
        "`number` is how many rows occur.",
    ),
    checker=Function(reference=_add_up, inputs=_uses, observe=_rows_of),
)


@one_slice.starter("add_up")
def _(slices):
    return ...  # tf.IndexedSlices(values, indices, dense_shape)


@one_slice.right
def _(slices):
    """`tf.unique` gives each row that occurs a small number, and the sum over segments adds the slices of one number.
    The table is not written out, and the norm of the result is the norm of the gradient."""
    used, where = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, where, tf.size(used))
    return tf.IndexedSlices(values, used, slices.dense_shape)


@one_slice.mistake("unchanged")
def _(slices):
    """Rows that were used several times still have several slices."""
    return slices


@one_slice.mistake("mean")
def _(slices):
    """The slices of a row are averaged. The gradient is the *sum* over the uses."""
    used, where = tf.unique(slices.indices)
    return tf.IndexedSlices(
        tf.math.unsorted_segment_mean(slices.values, where, tf.size(used)), used, slices.dense_shape
    )


@one_slice.mistake("last_use")
def _(slices):
    """Of each row one slice is left, that of its last use. What became of the others?"""
    used, where = tf.unique(slices.indices)
    last = tf.math.unsorted_segment_max(tf.range(tf.size(where)), where, tf.size(used))
    return tf.IndexedSlices(tf.gather(slices.values, last), used, slices.dense_shape)


@one_slice.mistake("first_use")
def _(slices):
    """Of each row one slice is left, that of its first use. What became of the others?"""
    used, where = tf.unique(slices.indices)
    first = tf.math.unsorted_segment_min(tf.range(tf.size(where)), where, tf.size(used))
    return tf.IndexedSlices(tf.gather(slices.values, first), used, slices.dense_shape)


@one_slice.mistake("renumbered")
def _(slices):
    """The sums are right, and they stand in other rows: 0, 1, 2 … are places among the rows that occur, and not the
    rows."""
    used, where = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, where, tf.size(used))
    return tf.IndexedSlices(values, tf.range(tf.size(used, tf.int64)), slices.dense_shape)


@one_slice.wrong("none")
def _(slices):
    used, where = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, where, tf.size(used))
    return tf.IndexedSlices(values, used, None)


@one_slice.wrong("raised:TypeError")
def _(slices):
    used, where = tf.unique(slices.indices)
    return tf.math.unsorted_segment_sum(slices.values, where, tf.size(used))


def _identity_with(gradient):
    @tf.custom_gradient
    def identity(h):
        return tf.identity(h), gradient

    return identity


def _limit_rows(upstream):
    lengths = tf.sqrt(tf.reduce_sum(upstream**2, axis=1, keepdims=True))
    return upstream / tf.maximum(lengths, tf.ones_like(lengths))


def _tables(random, dtype):
    def trial(shape):
        scale = np_scales(shape[0])
        h, upstream = (random.normal(size=shape) for _ in range(2))
        return tf.constant(h, dtype), tf.constant(upstream * scale, dtype)

    def np_scales(rows):
        return random.permutation([0.1, 3.0] * rows)[:rows, None]  # some rows below the limit, some above

    example = tf.constant([[3.0, 4.0], [0.3, 0.4]], dtype)
    with_zeros = tf.constant([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]], dtype)
    return [
        (tf.constant([[5.0, -6.0], [7.0, 8.0]], dtype), example),
        trial((7, 5)),
        trial((4, 4)),
        (tf.ones((3, 2), dtype), with_zeros),
    ]


each_limit = Exercise(
    title="A limit for each example",
    minutes=5,
    hints=(
        "What arrives is `upstream`, of shape (batch, units). Over which axis must the norm run, so that there is one "
        "for each example?",
        "`tf.clip_by_norm` has an argument `axes`: the axes along which the norm is computed. Without it, all of them.",
        "It is the clip of section 6 with the limit 1 and `axes=[1]`.",
    ),
    checker=Function(
        reference=_identity_with(_limit_rows),
        inputs=_tables,
        observe=_value_and_gradient,
        upstream=1,
        axes=("example", "unit"),
    ),
)


@each_limit.starter("limit_each")
@tf.custom_gradient
def _(h):
    return tf.identity(h), lambda upstream: ...


@each_limit.right
@tf.custom_gradient
def _(h):
    """Each row of `upstream` belongs to one example. With `axes=[1]` the norm is taken along the row. Without it there
    is one norm for the whole batch, and an example's gradient would depend on who else is in it."""
    return tf.identity(h), lambda upstream: tf.clip_by_norm(upstream, 1.0, axes=[1])


@each_limit.mistake("whole_batch")
@tf.custom_gradient
def _(h):
    """Here the whole batch shares one limit. How many norms should there be?"""
    return tf.identity(h), lambda upstream: tf.clip_by_norm(upstream, 1.0)


@each_limit.mistake("units_axis")
@tf.custom_gradient
def _(h):
    """Here each *unit* has a limit, over the batch. Which axis is the batch?"""
    return tf.identity(h), lambda upstream: tf.clip_by_norm(upstream, 1.0, axes=[0])


@each_limit.mistake("each_entry")
@tf.custom_gradient
def _(h):
    """Here each entry has a limit of its own, which turned a row. The limit is meant for the row's norm."""
    return tf.identity(h), lambda upstream: tf.clip_by_value(upstream, -1.0, 1.0)


@each_limit.mistake("always_one")
@tf.custom_gradient
def _(h):
    """Rows that were below the limit are made longer. A limit leaves them as they are."""
    return tf.identity(h), lambda upstream: upstream / tf.norm(upstream, axis=1, keepdims=True)


@each_limit.mistake("zero_row")
@tf.custom_gradient
def _(h):
    """Right, but for an example whose gradient is zero: it is divided by its norm, and 0/0 is NaN."""

    def backward(upstream):
        lengths = tf.norm(upstream, axis=1, keepdims=True)
        return upstream / lengths * tf.minimum(lengths, tf.ones_like(lengths))

    return tf.identity(h), backward


@each_limit.mistake("no_limit")
@tf.custom_gradient
def _(h):
    """The gradient comes back as it arrived: nothing is limited."""
    return tf.identity(h), lambda upstream: upstream


@each_limit.wrong("values")
@tf.custom_gradient
def _(h):
    return tf.identity(h), lambda upstream: tf.clip_by_norm(h, 1.0, axes=[1])


@each_limit.wrong("values")
@tf.custom_gradient
def _(h):
    return tf.clip_by_norm(h, 1.0, axes=[1]), lambda upstream: upstream
