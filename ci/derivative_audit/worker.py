"""Measures cases in a process of its own, which may die: `audit.py` reads what it writes, line by line.

Standard input: one JSON list, the modes and the names; `--names` lists all names instead. Standard output: JSON lines.
"""

import json
import os
import sys

# What libraries print would come between the lines.
lines = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402


def say(line):
    print(json.dumps(line, ensure_ascii=False), file=lines, flush=True)


def main():
    tf.get_logger().setLevel("ERROR")
    keras.config.set_floatx("float64")
    import by_hand
    import cases
    import layers
    import measure

    def names():
        """Public names, and cases that are written by hand under other names."""
        listed = list(cases.public())
        extra = [f"{name} in training" for name in listed if layers.in_training(name)]
        return [*listed, *(name for name in by_hand.named() if name not in listed), *extra]

    def find(name):
        """The case of a name, or the reason why there is none."""
        if case := by_hand.named().get(name):
            return case, ""
        if cases.NO_FUNCTION.fullmatch(name):
            return None, "no function of real numbers"
        if cases.RANDOM.fullmatch(name):
            return None, "random, without a seed of its own"
        if name.split(" ")[0] in by_hand.LEFT_OUT:
            return None, by_hand.LEFT_OUT[name.split(" ")[0]]
        if name.startswith("keras.layers."):
            return layers.find(name)
        function = cases.public()[name]
        if name.startswith("keras.losses."):
            return layers.find_loss(name, function)
        return cases.first_that_works(cases.candidates(name, function))

    if "--names" in sys.argv:
        python = sys.version.split()[0]
        say({"tensorflow": tf.__version__, "keras": keras.__version__, "python": python, "names": names()})
        return
    modes, listed = json.load(sys.stdin)
    for name in listed:
        say({"start": name})
        try:
            case, reason = find(name)
            say({"name": name} | (measure.measure(case, modes) if case else {"left out": reason}))
        except Exception as error:
            say({"name": name, "left out": f"the audit itself fails: {type(error).__name__}: {str(error)[:120]}"})


if __name__ == "__main__":
    main()
