"""The warm-up of notebook 00, Start here: how predictions and exercises work."""

from tapelab.exercises import Exercise, Mistake, Prediction, Value

cubed = Prediction(
    "00.cubed",
    reason=(
        "The loop multiplies by $x$ three times, so $y = x^3$, and $3x^2 = 12$. The tape was not told so: it wrote down the three products "
        "and applied the product rule to each."
    ),
    remarks=(
        ([8.0, 4.0], "4 holds two of the three factors fixed. Each of the three contributes $x^2 = 4$."),
        ([8.0, 8.0], "8 is the value, $x^3$. The slope is another number, $3x^2$."),
        ([8.0, 6.0], "6 is $3x$. The derivative of $x^3$ is $3x^2$."),
        ([6.0, 3.0], "$3x$ adds three times. The loop multiplies."),
    ),
)

slope_at_five = Exercise(
    "00.slope_at_five",
    title="The slope somewhere else",
    minutes=1,
    starter="""
slope_at_five = ...  # a number

exercises.slope_at_five.check(slope_at_five)
""",
    solution_code="slope_at_five = 75.0  # 3 * 5**2",
    explanation="$3x^2$ at $x = 5$ is 75. A variable at 5.0 in the cell above gives the same from the tape.",
    hints=(
        "The loop computes $x^3$. What is its derivative?",
        "The derivative is $3x^2$. Put 5 in place of $x$; or let the tape do it, with `x = tf.Variable(5.0)` in the cells above.",
    ),
    checker=Value(
        75.0,
        mistakes=(
            Mistake("value", "125 is the value $5^3$. The slope is asked for.", 125.0),
            Mistake("one_factor", "25 holds two of the three factors fixed. Each of them contributes.", 25.0),
            Mistake("power_lost", "15 is $3x$. A power falls by one: from 3 to what?", 15.0),
            Mistake("other_place", "12 is the slope at 2.", 12.0),
        ),
    ),
    wrong=(
        ("slope_at_five = 125.0", "value"),
        ("slope_at_five = 5 ** 2", "one_factor"),
        ("slope_at_five = 3 * 5", "power_lost"),
        ("slope_at_five = 12", "other_place"),
        ("slope_at_five = '75'", "type"),
        ("slope_at_five = -75.0", "sign"),
    ),
)
