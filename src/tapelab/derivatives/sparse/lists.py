"""Dependences through lists of tensors, as loops keep them, and through boxes for one tensor, as conditionals do."""

from collections.abc import Callable

from tapelab.derivatives.sparse.dependence import Dependence, NoRule, numbers, take
from tapelab.derivatives.sparse.rules import Step

import numpy as np
from scipy import sparse


def _items(step, index=0):
    items = step.known[index].items
    if items is None:
        raise NoRule("what is in the list is not known")
    return items


def _at(step):
    return int(step.constant(1))


def _list(items):
    return [Dependence((), items=tuple(items))]


def _item(step, item):
    """What is known of an item; one that was never set is zero."""
    return item if item is not None else Dependence(step.shapes[-1])


def _reserve(step):
    return _list([None] * _at(step))


def _from_tensor(step):
    one = step.known[0]
    rows = numbers(one.shape)
    return _list(
        Dependence(one.shape[1:], None if one.matrix is None else take(one.matrix, row, step.room)) for row in rows
    )


def _set(step):
    items, at = list(_items(step)), _at(step)
    items[at] = step.known[2]
    return _list(items)


def _get(step):
    return [_item(step, _items(step)[_at(step)])]


def _push(step):
    return _list([*_items(step), step.known[1]])


def _pop(step):
    *rest, last = _items(step)
    return [*_list(rest), _item(step, last)]


def _stack(step):
    shape = step.shapes[0]
    size = int(np.prod(shape[1:]))
    matrices = [None if item is None else item.matrix for item in _items(step)]
    if not any(matrix is not None for matrix in matrices):
        return [Dependence(shape)]
    width = next(matrix.shape[1] for matrix in matrices if matrix is not None)
    empty = sparse.csr_array((size, width), dtype=bool)
    blocks = [empty if matrix is None else matrix for matrix in matrices]
    if any(block.shape[0] != size for block in blocks):
        raise NoRule("its items are not of one known shape")
    return [Dependence(shape, sparse.vstack(blocks, format="csr"))]


def _box(step):
    return _list(step.known)


def _unbox(step):
    return [item or Dependence(shape) for item, shape in zip(_items(step), step.shapes, strict=True)]


LISTS: dict[str, Callable[[Step], list[Dependence]]] = {
    "EmptyTensorList": lambda step: _list([]),
    "OptionalFromValue": _box,
    "OptionalGetValue": _unbox,
    "TensorListFromTensor": _from_tensor,
    "TensorListGetItem": _get,
    "TensorListPopBack": _pop,
    "TensorListPushBack": _push,
    "TensorListReserve": _reserve,
    "TensorListSetItem": _set,
    "TensorListStack": _stack,
}
