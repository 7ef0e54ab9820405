"""The notebooks can fail: TensorFlow is broken on purpose, one meaning at a time, in the kernel that runs the notebook,
and the notebook that teaches that meaning must stop at one of its own assertions.

That the same notebooks run to the end with TensorFlow as it is, nbval shows in the other half of `make test`.
"""

import subprocess
import textwrap
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"

# Each breakage: what it makes of TensorFlow, as code that runs after the notebook's imports.
BREAKAGES = {
    "recording never stops": """
        import contextlib
        tf.GradientTape.stop_recording = lambda self: contextlib.nullcontext()
    """,
    "reset does nothing": """
        tf.GradientTape.reset = lambda self: None
    """,
    "watch does nothing": """
        tf.GradientTape.watch = lambda self, tensor: None
    """,
    "every tape is persistent": """
        init = tf.GradientTape.__init__
        tf.GradientTape.__init__ = lambda self, persistent=False, watch_accessed_variables=True: init(
            self, True, watch_accessed_variables)
    """,
    "every tape watches every variable": """
        init = tf.GradientTape.__init__
        tf.GradientTape.__init__ = lambda self, persistent=False, watch_accessed_variables=True: init(
            self, persistent, True)
    """,
    "unwatched sources get zeros": """
        gradient = tf.GradientTape.gradient
        def zeros_instead_of_none(self, target, sources, output_gradients=None, unconnected_gradients=None):
            return gradient(self, target, sources, output_gradients, tf.UnconnectedGradients.ZERO)
        tf.GradientTape.gradient = zeros_instead_of_none
    """,
    "unconnected gradients stay None": """
        gradient = tf.GradientTape.gradient
        def none_instead_of_zeros(self, target, sources, output_gradients=None, unconnected_gradients=None):
            return gradient(self, target, sources, output_gradients)
        tf.GradientTape.gradient = none_instead_of_zeros
    """,
    "output_gradients are ignored": """
        gradient = tf.GradientTape.gradient
        def without_output_gradients(self, target, sources, output_gradients=None, **kwargs):
            return gradient(self, target, sources, **kwargs)
        tf.GradientTape.gradient = without_output_gradients
    """,
    "stop_gradient is the identity": """
        tf.stop_gradient = tf.identity
    """,
    "custom gradients are ignored": """
        def plain(f):
            def call(*args, **kwargs):
                return f(*args, **kwargs)[0]
            return call
        tf.custom_gradient = plain
    """,
    "clip_by_norm is the identity": """
        tf.clip_by_norm = lambda t, clip_norm, axes=None, name=None: tf.identity(t)
    """,
    "clip_by_global_norm is the identity": """
        def identity(t_list, clip_norm, use_norm=None, name=None):
            return list(t_list), tf.linalg.global_norm(t_list)
        tf.clip_by_global_norm = identity
    """,
    "the optimiser does not step": """
        tf.keras.optimizers.Optimizer.apply_gradients = lambda self, grads_and_vars, **kwargs: list(grads_and_vars)
    """,
    # Values stay right; whatever is differentiated a second time comes out twice as large.
    "second order is off by a factor": """
        @tf.custom_gradient
        def same_value_double_slope(g):
            return tf.identity(g), lambda upstream: 2.0 * upstream
        gradient = tf.GradientTape.gradient
        def doubled(self, *args, **kwargs):
            result = gradient(self, *args, **kwargs)
            return tf.nest.map_structure(lambda g: same_value_double_slope(g) if tf.is_tensor(g) else g, result)
        tf.GradientTape.gradient = doubled
    """,
    "jacobian is transposed": """
        jacobian = tf.GradientTape.jacobian
        def transposed(self, target, sources, *args, **kwargs):
            result = jacobian(self, target, sources, *args, **kwargs)
            rank = len(target.shape)
            def swap(j):
                return j if j is None else tf.transpose(j, [*range(rank, len(j.shape)), *range(rank)])
            return tf.nest.map_structure(swap, result)
        tf.GradientTape.jacobian = transposed
    """,
    "jacobian is off by a factor": """
        jacobian = tf.GradientTape.jacobian
        def doubled(self, *args, **kwargs):
            result = jacobian(self, *args, **kwargs)
            return tf.nest.map_structure(lambda j: j if j is None else 2.0 * j, result)
        tf.GradientTape.jacobian = doubled
    """,
    "batch_jacobian is transposed": """
        batch_jacobian = tf.GradientTape.batch_jacobian
        def transposed(self, *args, **kwargs):
            return tf.linalg.matrix_transpose(batch_jacobian(self, *args, **kwargs))
        tf.GradientTape.batch_jacobian = transposed
    """,
    "forward mode is off by a factor": """
        jvp = tf.autodiff.ForwardAccumulator.jvp
        def doubled(self, *args, **kwargs):
            result = jvp(self, *args, **kwargs)
            return tf.nest.map_structure(lambda t: t if t is None else 2.0 * t, result)
        tf.autodiff.ForwardAccumulator.jvp = doubled
    """,
    "the sigmoid has no slope": """
        def flat(x, name=None):
            return tf.stop_gradient(1 / (1 + tf.exp(-x))) + 0 * x
        tf.sigmoid = tf.nn.sigmoid = tf.math.sigmoid = flat
    """,
}

TAUGHT_IN = [
    ("the sigmoid has no slope", "00_start_here"),
    ("every tape is persistent", "01_gradient_tape_basics"),
    ("watch does nothing", "01_gradient_tape_basics"),
    ("the optimiser does not step", "02_training_with_a_tape"),
    ("unwatched sources get zeros", "03_when_the_gradient_is_none"),
    ("unconnected gradients stay None", "03_when_the_gradient_is_none"),
    ("the sigmoid has no slope", "04_when_the_gradient_is_wrong"),
    ("recording never stops", "05_recording_control"),
    ("reset does nothing", "05_recording_control"),
    ("stop_gradient is the identity", "06_stop_gradient"),
    ("custom gradients are ignored", "07_custom_gradients"),
    ("clip_by_norm is the identity", "08_clipping"),
    ("clip_by_global_norm is the identity", "08_clipping"),
    ("every tape watches every variable", "09_multiple_tapes"),
    ("unwatched sources get zeros", "09_multiple_tapes"),
    ("second order is off by a factor", "10_higher_order_gradients"),
    ("jacobian is transposed", "11_jacobians"),
    ("jacobian is off by a factor", "11_jacobians"),
    ("second order is off by a factor", "13_hessians_and_newton"),
    ("jacobian is transposed", "13_hessians_and_newton"),
    ("second order is off by a factor", "14_without_the_matrix"),
    ("forward mode is off by a factor", "14_without_the_matrix"),
    ("jacobian is transposed", "15_batch_jacobians"),
    ("batch_jacobian is transposed", "15_batch_jacobians"),
    ("forward mode is off by a factor", "12_forward_mode"),
    ("jacobian is off by a factor", "17_fit_and_error_bars"),
    ("jacobian is off by a factor", "18_error_bars_for_a_network"),
    ("custom gradients are ignored", "19_derivative_of_a_solution"),
    ("second order is off by a factor", "20_edge_of_stability"),
    ("jacobian is off by a factor", "21_influence_functions"),
    ("second order is off by a factor", "22_differentiate_the_optimiser"),
    ("stop_gradient is the identity", "23_learn_the_start"),
    ("second order is off by a factor", "24_an_equation_and_no_data"),
    ("jacobian is transposed", "25_control_and_the_horizon_of_chaos"),
    ("stop_gradient is the identity", "26_gradient_of_an_expectation"),
    ("output_gradients are ignored", "27_generative_model_from_a_trace"),
    ("output_gradients are ignored", "28_small_transformer"),
    ("unwatched sources get zeros", "29_first_aid"),
    ("every tape is persistent", "29_first_aid"),
    ("watch does nothing", "29_first_aid"),
    ("the optimiser does not step", "29_first_aid"),
    ("unwatched sources get zeros", "30_hard_cases"),
    ("second order is off by a factor", "30_hard_cases"),
]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("breakage", "name"), TAUGHT_IN, ids=lambda value: value.replace(" ", "-"))
def test_the_notebook_that_teaches_it_notices(breakage, name, forked_kernels):
    nb = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    setup = next(i for i, cell in enumerate(nb.cells) if "setup" in cell.metadata.get("tags", []))
    # Within a function: the names that a breakage uses are then out of the notebook's reach.
    code = f"def sabotage():\n{textwrap.indent(textwrap.dedent(BREAKAGES[breakage]), '    ')}\nsabotage()"
    nb.cells.insert(setup + 1, nbformat.v4.new_code_cell(code))
    client = NotebookClient(nb, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOKS)}})
    with pytest.raises(CellExecutionError) as failure:
        client.execute(stderr=subprocess.DEVNULL)
    assert failure.value.ename == "AssertionError", f"stopped by {failure.value.ename}: {failure.value.evalue}"


def test_every_breakage_is_taught_somewhere():
    assert {breakage for breakage, _ in TAUGHT_IN} == set(BREAKAGES)
