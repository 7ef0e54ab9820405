"""How a sparse matrix of derivatives is computed: its pattern, its colours, and what was taken as dense."""

from dataclasses import dataclass

from tapelab.derivatives.machinery.memory import counted
from tapelab.derivatives.machinery.plan import Plan

import numpy as np
from scipy import sparse


@dataclass(frozen=True)
class SparsePlan(Plan):
    """How a sparse matrix of derivatives is computed; `passes` is the number of colours.

    Attributes:
        pattern: a SciPy sparse array, boolean, of all rows and columns packed: where entries may be.
        coloured: what has colours: "columns", "rows", or "symmetric" for both by a star colouring.
        colours: shape (columns,) or (rows,): which product each is in; -1 for those in none.
        dense: the operations that were taken to depend on all of their inputs, with their lines and why.
    """

    pattern: sparse.csr_array | None = None
    coloured: str = ""
    colours: np.ndarray | None = None
    dense: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows, columns = self.pattern.shape
        share = self.pattern.nnz / max(rows * columns, 1)
        what = "a star colouring" if self.coloured == "symmetric" else f"a colouring of {self.coloured}"
        lines = [
            super().__str__(),
            f"pattern of shape ({rows}, {columns}): {counted(self.pattern.nnz, 'place')} ({share:.2g} of all), "
            f"{counted(self.passes, 'colour')} in {what}",
        ]
        if self.passes >= min(rows, columns) > 1:
            lines.append("as many colours as there are columns or rows: nothing is gained over the dense matrix")
        return "\n".join([*lines, *[f"taken as dense: {one}" for one in self.dense]])
