"""Dependences through lists of tensors, as loops keep them, and through boxes for one tensor, as conditionals do."""

from collections.abc import Callable, Iterable

from tapelab.derivatives.sparse.dependence import Dependence, NoRule, numbers, take
from tapelab.derivatives.sparse.rules import Step

import numpy as np
from scipy import sparse


def _items(step: Step, index: int = 0) -> tuple[Dependence | None, ...]:
    items = step.known[index].items
    if items is None:
        raise NoRule("what is in the list is not known")
    return items


def _at(step: Step) -> int:
    return int(step.constant(1))


def _list(items: Iterable[Dependence | None]) -> list[Dependence]:
    return [Dependence((), items=tuple(items))]


def _item(step: Step, item: Dependence | None) -> Dependence:
    """What is known of an item; one that was never set is zero."""
    return item if item is not None else Dependence(step.shapes[-1])


def _reserve(step: Step) -> list[Dependence]:
    return _list([None] * _at(step))


def _from_tensor(step: Step) -> list[Dependence]:
    one = step.known[0]
    rows = numbers(one.sizes)
    return _list(
        Dependence(one.sizes[1:], None if one.matrix is None else take(one.matrix, row, step.room)) for row in rows
    )


def _set(step: Step) -> list[Dependence]:
    items, at = list(_items(step)), _at(step)
    items[at] = step.known[2]
    return _list(items)


def _get(step: Step) -> list[Dependence]:
    return [_item(step, _items(step)[_at(step)])]


def _push(step: Step) -> list[Dependence]:
    return _list([*_items(step), step.known[1]])


def _pop(step: Step) -> list[Dependence]:
    *rest, last = _items(step)
    return [*_list(rest), _item(step, last)]


def _stack(step: Step) -> list[Dependence]:
    shape = step.out
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


def _box(step: Step) -> list[Dependence]:
    return _list(step.known)


def _unbox(step: Step) -> list[Dependence]:
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
