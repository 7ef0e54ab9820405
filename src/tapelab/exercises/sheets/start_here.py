"""The warm-up of the notebook "Start here": how predictions and exercises work."""

from tapelab.exercises import Exercise, Mistake, Prediction, Value

at_two = Prediction(
    "start_here.at_two",
    remarks=(
        ([8.0, 4.0], "4 holds two of the three factors fixed. Each of the three contributes $x^2 = 4$."),
        ([8.0, 8.0], "8 is the value, $x^3$. The slope is another number, $3x^2$."),
        ([8.0, 6.0], "6 is $3x$. The derivative of $x^3$ is $3x^2$."),
        ([6.0, 3.0], "$3x$ adds three times. The loop multiplies."),
    ),
)

slope_at_five = Exercise(
    title="The slope somewhere else",
    minutes=1,
    hints=(
        "The loop computes $x^3$. What is its derivative?",
        "The derivative is $3x^2$. Put 5 in place of $x$; or let the tape do it, with `at = tf.Variable(5.0)` in the "
        "cells above.",
    ),
    checker=Value(
        75.0,
        mistakes=(
            Mistake("value", "125 is the value $5^3$. The slope is asked for.", 125.0),
            Mistake("one_factor", "25 holds two of the three factors fixed. Each of them contributes.", 25.0),
            Mistake("power_lost", "15 is $3x$. A power falls by one: from 3 to what?", 15.0),
            Mistake("other_place", "12 is the slope at 2.", 12.0),
        ),
        wrong=(
            ("type", "75"),
            ("sign", -75.0),
        ),
    ),
)


@slope_at_five.starter()
def _():
    slope_at_five = ...  # a number

    return slope_at_five


@slope_at_five.right
def _():
    """$3x^2$ at $x = 5$ is 75. A variable at 5.0 in the cell above gives the same from the tape."""
    slope_at_five = 75.0  # 3 * 5**2
    return slope_at_five
