"""Values and cotangents as short text, for a drawing and for a table."""

import numpy as np


def number(value: float | complex | np.number) -> str:
    """Write a number with at most four significant digits."""
    if np.iscomplexobj(value):
        return f"{value:.3g}"
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = f"{float(value) + 0.0:.4g}"  # no -0
    if "e" in text:
        digits, exponent = text.split("e")
        return f"{digits}e{int(exponent)}"
    return text


def value_text(values: np.ndarray) -> str:
    """Describe a forward value.

    Args:
        values: an array.

    Returns:
        The number; of several elements the shape and the range: "(3, 2)  -1 … 4"; and how many are not finite.
    """
    if not values.size:
        return f"{values.shape}  empty"
    if values.size == 1:
        return number(values.ravel()[0])
    bad = _not_finite(values)
    finite = values[np.isfinite(values)]
    if not finite.size or np.iscomplexobj(finite):
        return f"{values.shape}  {bad or 'complex'}"
    low, high = number(finite.min()), number(finite.max())
    between = f"all {low}" if low == high else f"{low} … {high}"
    return f"{values.shape}  {between}" + (f", {bad}" if bad else "")


def cotangent_text(values: np.ndarray) -> str:
    """Describe a cotangent.

    Args:
        values: an array.

    Returns:
        The number; of several elements the Euclidean norm, the share of zeros, and how many are not finite.
    """
    if not values.size:
        return "empty"
    if values.size == 1:
        return number(values.ravel()[0])
    bad = _not_finite(values)
    if bad:
        return bad
    zeros = int((values == 0).sum())
    if zeros == values.size:
        return "all 0"
    text = f"norm {number(np.linalg.norm(values.ravel()))}"
    return text + (f", {round(100 * zeros / values.size)} % zeros" if zeros else "")


def shortened(text: str, longest: int) -> str:
    """Cut a text off that has more than so many characters."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _not_finite(values: np.ndarray) -> str:
    """Count NaN and infinities: "2 of 6 NaN"; empty where all are finite."""
    counts = ((int(np.isnan(values).sum()), "NaN"), (int(np.isinf(values).sum()), "inf"))
    return ", ".join(f"{count} of {values.size} {word}" for count, word in counts if count)
