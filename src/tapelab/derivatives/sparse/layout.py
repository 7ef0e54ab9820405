"""Where the entries of a sparse matrix of derivatives are, in one matrix or in blocks, and how it is put together."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tapelab.derivatives.sparse.colouring import Colouring
from tapelab.process.tensorflow import Tensors, tf

import numpy as np
from scipy import sparse

FORMATS = ("tensorflow", "coo", "csr", "csc")


class Block(NamedTuple):
    """One of the matrices that the result consists of.

    Attributes:
        shape: (rows, columns).
        rows, columns: of its entries, row by row.
        dtype: of its values.
    """

    shape: tuple[int, int]
    rows: np.ndarray
    columns: np.ndarray
    dtype: tf.DType


class Layout:
    """The entries of a pattern, block by block.

    Args:
        pattern: boolean, all rows and columns.
        colouring: of that pattern.
        heights, widths: how many rows, and columns, each block has.
        dtypes: of the blocks of each width.

    Attributes:
        pattern, colouring: as given.
        blocks: the list of each `Block`, the first row of blocks first.
        rows, columns: of all entries, in the order of the blocks.
    """

    def __init__(
        self,
        pattern: sparse.csr_array,
        colouring: Colouring,
        heights: Sequence[int],
        widths: Sequence[int],
        dtypes: Sequence[tf.DType],
    ):
        self.pattern = pattern
        self.colouring = colouring
        entries = pattern.tocoo()
        edges = [np.cumsum([0, *sizes]) for sizes in (heights, widths)]
        block = [
            np.searchsorted(edge, part, side="right") - 1
            for edge, part in zip(edges, (entries.row, entries.col), strict=True)
        ]
        number = block[0] * len(widths) + block[1]
        order = np.argsort(number, kind="stable")
        self.rows, self.columns = entries.row[order].astype(np.int64), entries.col[order].astype(np.int64)
        self.counts = np.bincount(number, minlength=len(heights) * len(widths)).tolist()
        self._product, self._place = colouring.product[order], colouring.place[order]
        self.blocks, start = [], 0
        for index, count in enumerate(self.counts):
            i, j = divmod(index, len(widths))
            part = slice(start, start + count)
            rows, columns = self.rows[part] - edges[0][i], self.columns[part] - edges[1][j]
            self.blocks.append(Block((heights[i], widths[j]), rows, columns, dtypes[j]))
            start += count
        self._where: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}

    def values(self, products: Tensors) -> list[tf.Tensor]:
        """Read the entries from products with all colours.

        Args:
            products: the parts of each product, shape (colours, *part).

        Returns:
            A vector for each block.
        """
        if not len(self.rows):
            return [tf.zeros([0], block.dtype) for block in self.blocks]
        dtype = widest([part.dtype for part in products])
        count = self.colouring.count
        flat = tf.concat([tf.cast(tf.reshape(part, [count, -1]), dtype) for part in products], axis=1)
        index = self._product.astype(np.int64) * flat.shape[1] + self._place
        whole = tf.gather(tf.reshape(flat, [-1]), index if index.max() > 2**31 - 1 else index.astype(np.int32))
        parts = tf.split(whole, self.counts) if len(self.counts) > 1 else [whole]
        return [tf.cast(part, block.dtype) for part, block in zip(parts, self.blocks, strict=True)]

    def matrices(self, values: Tensors, form: str) -> list[tf.SparseTensor | sparse.sparray]:
        """Put the blocks together, in one of the `FORMATS`."""
        make = self._sparse_tensor if form == "tensorflow" else _scipy(form)
        return [make(index, block, part) for index, (block, part) in enumerate(zip(self.blocks, values, strict=True))]

    def _sparse_tensor(self, index: int, block: Block, values: tf.Tensor) -> tf.SparseTensor:
        if index not in self._where:
            with tf.init_scope():
                where = tf.constant(np.stack([block.rows, block.columns], axis=1))
                self._where[index] = where, tf.constant(block.shape, tf.int64)
        where, shape = self._where[index]
        return tf.SparseTensor(where, values, shape)


def _scipy(form: str) -> Callable:
    def make(index: int, block: Block, values: tf.Tensor) -> sparse.sparray:
        # The caller owns what it gets, and may change it in place.
        rows, columns = block.rows.copy(), block.columns.copy()
        return sparse.coo_array((values.numpy(), (rows, columns)), shape=block.shape).asformat(form)

    return make


def widest(dtypes: Sequence[tf.DType]) -> tf.DType:
    """The dtype that holds the numbers of all of these."""
    size = max(dtype.size for dtype in dtypes)
    largest = {dtype for dtype in dtypes if dtype.size == size}
    return largest.pop() if len(largest) == 1 else tf.float32  # float16 and bfloat16
