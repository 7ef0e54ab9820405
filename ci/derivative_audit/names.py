"""The catalogue: every public function and layer that might have a derivative, found in the packages themselves."""

import inspect
import re
from collections.abc import Callable

import by_hand
import keras
import layers
import tensorflow as tf
from cases import Case, automatic

# In this order: what is public under several names goes by the first.
FUNCTIONS = {
    "tf.math": tf.math,
    "tf.math.special": tf.math.special,
    "tf.nn": tf.nn,
    "tf.linalg": tf.linalg,
    "tf.signal": tf.signal,
    "tf.image": tf.image,
    "tf": tf,
    "keras.activations": keras.activations,
    "keras.ops": keras.ops,
    "keras.ops.image": keras.ops.image,
    "keras.losses": keras.losses,
    "keras.layers": keras.layers,
}
# No functions of real numbers, whatever they are called with.
NO_FUNCTION = re.compile(
    r"""
    tf\.(Assert|assert_\w+|as_dtype|as_string|check_pinned|broadcast_(dynamic|static)_shape|constant|control_dependencies
    |custom_gradient|device|edit_distance|executing_eagerly|fingerprint|function|get_\w+|gradients|group|hessians
    |import_graph_def|init_scope|inside_function|is_symbolic_tensor|is_tensor|load_\w+|make_\w+|no_gradient|no_op
    |nondifferentiable_batch_function|print|random_index_shuffle|register_\w+|required_space_to_batch_paddings
    |type_spec_from_value|variable_creator_scope|timestamp|unravel_index|sequence_mask|range|ones|zeros|rank|shape(_n)?|size
    |bitcast|tuple)
    |tf\.math\.(sobol_sample|in_top_k|invert_permutation|logical_\w+|confusion_matrix)
    |tf\.nn\.(\w+_candidate_sampler|collapse_repeated|compute_accidental_hits|ctc_(beam|greedy|unique)_\w+)
    |tf\.linalg\.eye|tf\.signal\.(\w+_window(_fn)?|linear_to_mel_weight_matrix)
    |tf\.image\.(decode_\w+|encode_\w+|extract_jpeg_shape|is_jpeg|\w*non_max_suppression\w*|generate_bounding_box_proposals
    |(stateless_)?sample_distorted_bounding_box)
    |keras\.\w+\.(deserialize|get|serialize|Input)
    |keras\.ops\.(custom_gradient|bitwise_\w+|(left|right)_shift|gcd|lcm|convert_to_numpy|dtype|is_tensor|jvp|empty(_like)?
    |eye|identity|ones|tri|zeros|arange|bartlett|blackman|hamming|hanning|kaiser|logical_\w+|shape|ndim|size|unravel_index
    |in_top_k|bincount|ctc_decode)
    |keras\.layers\.(Layer|Wrapper|InputLayer|InputSpec|FlaxLayer|JaxLayer|TorchModuleWrapper|TFSMLayer|Hashing
    |HashedCrossing|IntegerLookup|StringLookup|TextVectorization|Pipeline)
    |keras\.losses\.Loss
    """,
    re.VERBOSE,
)
# A seed that is global or drawn anew: the function is another one at each call.
RANDOM = re.compile(r"tf\.image\.random_\w+|tf\.nn\.(dropout|nce_loss|sampled_softmax_loss)|tf\.random_\w+")


def public() -> dict[str, Callable]:
    """Every public name, once for each object."""
    found: dict[str, Callable] = {}
    seen: set[int] = set()
    for prefix, module in FUNCTIONS.items():
        for name in sorted(dir(module)):
            thing = getattr(module, name)
            if name.startswith("_") or not callable(thing) or id(thing) in seen:
                continue
            if inspect.isclass(thing) and not prefix.startswith(("keras.layers", "keras.losses")):
                continue  # not called with tensors; linear operators are listed by hand
            seen.add(id(thing))
            found[f"{prefix}.{name}"] = thing
    return found


def names() -> list[str]:
    """What the audit has a line for: public names, and cases that are written by hand under other names."""
    listed = list(public())
    layers_too = layers.extra([name for name in listed if not NO_FUNCTION.fullmatch(name)])
    everything = [*listed, *(name for name in by_hand.named() if name not in listed), *layers_too]
    # Keras' operations last: most are TensorFlow's by another name, and an audit that is interrupted lacks these.
    return sorted(everything, key=lambda name: name.startswith("keras.ops"))


def find(name: str) -> tuple[Case | None, str]:
    """The case of a name, or the reason why there is none."""
    if case := by_hand.named().get(name):
        return case, ""
    if name in by_hand.LEFT_OUT:
        return None, by_hand.LEFT_OUT[name]
    if NO_FUNCTION.fullmatch(name):
        return None, "no function of real numbers"
    if RANDOM.fullmatch(name):
        return None, "random, without a seed of its own"
    function = public().get(name.split(" ")[0])
    if name.startswith("keras.layers.") and inspect.isclass(function):
        return layers.find(name, function)
    if name.startswith("keras.losses."):
        return layers.find_loss(name, function)
    return automatic(name, function)
