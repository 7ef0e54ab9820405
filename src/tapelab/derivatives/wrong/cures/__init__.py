"""Where TensorFlow's derivatives are wrong, ours: used while one of our derivatives is computed, and nowhere else.

A *family* of cures is a module of this package, listed in `FAMILIES`. It has some of these:

GRADIENTS: a dictionary from the type of an operation to a function as `tf.RegisterGradient` takes. That is called with
the operation and the cotangents of its outputs, and returns the cotangents of its inputs, None where there is none. It
is used in place of the one in TensorFlow's registry: eagerly, in graphs, in functions that were traced before and in
loaded ones. Where it is meant for some operations of the type only, it is marked by `cotangents.used_where`.
`replaced_gradients.plain` gives TensorFlow's; `cotangents.sum_to` undoes broadcasting. Eagerly
``op.inputs`` and ``op.outputs`` lack what TensorFlow's own gradient does not read: test every cure eagerly. Compose the
result of operations that have right derivatives themselves, by a cure of their own if need be, and that
`tf.vectorized_map` converts.

WIDER: likewise: gradients as TensorFlow's, but for a wider range of numbers. They are used where
none of `GRADIENTS` applies, without a word in a `Plan`; where gradients cannot be replaced, TensorFlow's remain.

FUNCTIONS: a list of `Replacement`. These are functions of a library, composed in Python, that are replaced while a
function is evaluated. A `tf.function` that was traced before has the original in its graph: a fresh copy of it is
traced. What cannot be traced anew, a loaded model or a concrete function, is refused.

The first line of the docstring of each of these functions, but for those of WIDER, says what is cured, for the notes
of a `Plan`: "tf.math.xlogy: ours is …; TensorFlow's is …".
"""

import importlib

_NAMES = (
    "at_zero",
    "complex",
    "kinks",
    "labels",
    "missing",
    "moments",
    "products",
    "pseudoinverse",
    "quotients",
    "scattered",
    "singular",
    "spectral",
)
FAMILIES = [importlib.import_module(f"{__name__}.{name}") for name in _NAMES]
