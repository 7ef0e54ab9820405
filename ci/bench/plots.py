"""The plot of a report: each recipe's time as a multiple of tapelab's."""

import itertools

import matplotlib

MARKS = {
    "guide": ("s", "#7F7F7F"),
    "jax": ("o", "#0072B2"),
    "jax jet": ("D", "#56B4E9"),
    "folx": ("P", "#009E73"),
    "torch": ("^", "#E69F00"),
    "torch autograd": ("<", "#F0E442"),
    "torch compiled": ("v", "#D55E00"),
    "torch-jet": ("X", "#CC79A7"),
    "torch-jet compiled": ("*", "#882255"),
}
# For recipes that have none of their own, in the order in which they come, and again from the start.
FURTHER = [("h", "#332288"), ("p", "#117733"), ("d", "#999933"), ("8", "#661100"), (">", "#44AA99"), ("H", "#AA4499")]


def marks(results):
    """Return a marker and a colour for each recipe of others, different ones for different recipes."""
    names = dict.fromkeys(name for result in results for name in result["seconds"])
    others = [name for name in names if not name.startswith("tapelab") and name not in MARKS and name != "one pass"]
    own = {name: mark for name, mark in MARKS.items() if name in names}
    return own | dict(zip(others, itertools.cycle(FURTHER), strict=False))


def ratios(results, path, caption):
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 2 + 0.24 * len(results)), layout="constrained")
    rows = [(row, result["seconds"]) for row, result in enumerate(results) if "tapelab" in result["seconds"]]
    for name, (marker, colour) in marks(results).items():
        points = [(seconds[name] / seconds["tapelab"], row) for row, seconds in rows if name in seconds]
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=colour, markeredgecolor="#333333", label=name)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(results)), labels=[result["work"] for result in results])
    axes.invert_yaxis()
    axes.set(xlabel="multiple; right of 1, tapelab is faster", ylabel="work")
    axes.set_title(f"Time of one call as a multiple of tapelab's\n{caption}", fontsize="small", wrap=True)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path, dpi=120)
    plt.close(figure)
