"""Why a gradient is NaN, infinite, zero, huge or tiny: told from a replay of the backward pass."""
