"""A layered layout: boxes in rows, links from row to row, nothing on top of anything else.

The steps are those of Sugiyama, Tagawa and Toda: rows by the longest path, placeholders where a link passes a row, an
order within each row that avoids crossings, then coordinates. All lengths are in points; y grows upwards.
"""

import dataclasses
import graphlib
import itertools
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias

GAP_X, GAP_Y = 16.0, 24.0
STUB = 9.0  # a link's last bit, straight down into its box, for the arrowhead
PORT = 20.0  # from one link to the next on a box, where there is room
LANE = 10.0  # width kept free for a link that passes a row


Size: TypeAlias = tuple[float, float]
Link: TypeAlias = tuple[Hashable, Hashable]
Chain: TypeAlias = Sequence[Hashable]
Rows: TypeAlias = Sequence[Chain]
Neighbours: TypeAlias = Mapping[Hashable, Chain]


@dataclasses.dataclass
class Placed:
    """Where a node is: the centre of its box, and the row it is in.

    Attributes:
        row: its number, from 0 at the top.
        x, y: the centre.
        width, height: of the box.
    """

    row: int
    width: float
    height: float
    x: float = 0.0
    y: float = 0.0


Places: TypeAlias = Mapping[Hashable, Placed]
Ports: TypeAlias = dict[tuple[str, Link], float]  # (in or out, link) → where on a box it ends or starts


def layered(
    sizes: Mapping[Hashable, Size], links: Collection[Link]
) -> tuple[dict[Hashable, Placed], dict[Link, list[tuple[float, float]]]]:
    """Place nodes and route links.

    Args:
        sizes: node → (width, height), for every node.
        links: a list of (node, node), without cycles and without repetition.

    Returns:
        node → `Placed`, and link → the points of its line, a list of (x, y) from the bottom of the one box to the top
        of the other.
    """
    rows = _rows(sizes, links)
    placed = {node: Placed(rows[node], *size) for node, size in sizes.items()}
    chains = {}
    for link in links:
        start, end = link
        lanes = [(link, row) for row in range(rows[start] + 1, rows[end])]
        for lane in lanes:
            placed[lane] = Placed(lane[1], LANE, 0.0)
        chains[link] = [start, *lanes, end]
    above, below = neighbours(placed, chains.values())
    order = _order(placed, above, below)
    _set_x(placed, order, above, below)
    tops, bottoms = _set_y(placed, order)
    ports = _ports(placed, chains)
    routes = {link: _route(link, chain, placed, ports, tops, bottoms) for link, chain in chains.items()}
    return {node: placed[node] for node in sizes}, routes


def _rows(sizes: Mapping[Hashable, Size], links: Collection[Link]) -> dict[Hashable, int]:
    """The row of each node: the length of the longest path to it; a node without links in comes just above its use."""
    before, following = neighbours(sizes, links)
    rows = {}
    for node in graphlib.TopologicalSorter(before).static_order():
        rows[node] = max((rows[one] + 1 for one in before[node]), default=0)
    for node in sizes:
        if following[node] and not before[node]:
            rows[node] = min(rows[after] for after in following[node]) - 1
    top = min(rows.values())
    return {node: row - top for node, row in rows.items()}


def neighbours(
    nodes: Collection[Hashable], chains: Iterable[Chain]
) -> tuple[dict[Hashable, list[Hashable]], dict[Hashable, list[Hashable]]]:
    """Return node → those just above it in some chains, and node → those just below it."""
    above, below = {node: [] for node in nodes}, {node: [] for node in nodes}
    for chain in chains:
        for upper, lower in itertools.pairwise(chain):
            below[upper].append(lower)
            above[lower].append(upper)
    return above, below


def _order(placed: Places, above: Neighbours, below: Neighbours) -> list[list[Hashable]]:
    """The nodes of each row from left to right: sorted by the mean place of their neighbours, downwards and upwards."""
    rows = {}
    for node, place in placed.items():
        rows.setdefault(place.row, []).append(node)
    order = [rows[row] for row in sorted(rows)]
    best, fewest = [list(row) for row in order], _crossings(order, below)
    for sweep in range(12):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for row in order if down else reversed(order):
            index = {node: i for other in order for i, node in enumerate(other)}
            means = {node: _mean([index[other] for other in neighbours[node]], index[node]) for node in row}
            row.sort(key=means.get)
        count = _crossings(order, below)
        if count < fewest:
            best, fewest = [list(row) for row in order], count
    return best


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


def _crossings(order: Rows, below: Neighbours) -> int:
    total = 0
    for upper, lower in itertools.pairwise(order):
        index = {node: i for i, node in enumerate(lower)}
        ends = [sorted(index[node] for node in below[start]) for start in upper]
        flat = [end for group in ends for end in group]
        total += sum(a > b for i, a in enumerate(flat) for b in flat[i + 1 :])
    return total


def _set_x(placed: Places, order: Rows, above: Neighbours, below: Neighbours) -> None:
    for row in order:
        _spread(placed, row, [0.0] * len(row))
    for sweep in range(16):
        neighbours = (above, below)[sweep % 2]
        for row in order if sweep % 2 == 0 else reversed(order):
            wanted = [_mean([placed[other].x for other in neighbours[node]], placed[node].x) for node in row]
            _spread(placed, row, wanted)


def _spread(placed: Places, row: Chain, wanted: Sequence[float]) -> None:
    """Move the nodes of a row as near to where they want to be as their order and the gaps allow (least squares)."""
    offsets, at = [], 0.0
    for i, node in enumerate(row):
        if i:
            at += (placed[row[i - 1]].width + placed[node].width) / 2 + GAP_X
        offsets.append(at)
    # Without the gaps it is isotonic regression: pool neighbours that want to be in the wrong order.
    pools = []
    for offset, want in zip(offsets, wanted, strict=True):
        pools.append([want - offset, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            value, count = pools.pop()
            pools[-1] = [(pools[-1][0] * pools[-1][1] + value * count) / (pools[-1][1] + count), pools[-1][1] + count]
    shifts = [value for value, count in pools for _ in range(count)]
    for node, offset, shift in zip(row, offsets, shifts, strict=True):
        placed[node].x = offset + shift


def _set_y(placed: Places, order: Rows) -> tuple[list[float], list[float]]:
    """Set the rows one below the other. Returns the y of each row's top and bottom."""
    tops, bottoms, y = [], [], 0.0
    for row in order:
        height = max(placed[node].height for node in row)
        tops.append(y)
        for node in row:
            placed[node].y = y - height / 2
        y -= height
        bottoms.append(y)
        y -= GAP_Y
    return tops, bottoms


def _ports(placed: Places, chains: Mapping[Link, Chain]) -> Ports:
    """Where on a box each link starts or ends: spread over the middle of its edge in the order of the other ends."""
    leaving, arriving = {}, {}
    for link, chain in chains.items():
        leaving.setdefault(chain[0], []).append((placed[chain[1]].x, link))
        arriving.setdefault(chain[-1], []).append((placed[chain[-2]].x, link))
    ports = {}
    for side, groups in (("out", leaving), ("in", arriving)):
        for node, found in groups.items():
            found.sort(key=lambda pair: pair[0])
            step = min(PORT, 0.8 * placed[node].width / len(found))
            for i, (_, link) in enumerate(found):
                ports[side, link] = placed[node].x + (i - (len(found) - 1) / 2) * step
    return ports


def _route(
    link: Link, chain: Chain, placed: Places, ports: Ports, tops: Sequence[float], bottoms: Sequence[float]
) -> list[tuple[float, float]]:
    start, end = placed[chain[0]], placed[chain[-1]]
    points = [(ports["out", link], start.y - start.height / 2), (ports["out", link], bottoms[start.row])]
    for lane in chain[1:-1]:
        place = placed[lane]
        points += [(place.x, tops[place.row]), (place.x, bottoms[place.row])]
    points += [(ports["in", link], tops[end.row] + STUB), (ports["in", link], end.y + end.height / 2)]
    return points
