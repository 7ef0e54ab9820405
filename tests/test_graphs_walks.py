"""Ways through a graph, held against all simple ways, written out."""

from tapelab.graphs.walks import cheapest, reachable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NODES = st.integers(0, 5)
COSTS = st.tuples(st.integers(0, 2), st.integers(0, 2))
# Each link is there or not: a graph of six nodes with about half of all links.
GRAPHS = st.lists(st.none() | COSTS, min_size=36, max_size=36).map(
    lambda links: {divmod(i, 6): cost for i, cost in enumerate(links) if cost is not None}
)

# A machine that does other work beside may be slow at any of it.
patient = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def ways(graph, node, goals, met=()):
    """Every simple way from a node to a goal, as a list of links."""
    if node in goals:
        yield []
    for start, end in graph:
        if start == node and end not in (*met, node):
            yield from ([(start, end), *rest] for rest in ways(graph, end, goals, (*met, node)))


def cost(graph, way):
    return tuple(sum(graph[link][i] for link in way) for i in range(2))


@pytest.mark.dear
@patient
@given(GRAPHS, st.sets(NODES, min_size=1, max_size=2))
def test_the_cheapest_way_is_as_cheap_as_any(graph, goals):
    def steps(node):
        return [(end, graph[node, end], (node, end)) for start, end in graph if start == node]

    found = cheapest(0, goals, steps)
    every = list(ways(graph, 0, goals))
    assert (found is None) == (not every)
    if every:
        assert found in every
        assert cost(graph, found) == min(cost(graph, way) for way in every)


@patient
@given(GRAPHS)
def test_what_a_way_leads_to_is_reachable(graph):
    found = reachable([0], lambda node: [end for start, end in graph if start == node])
    assert found == {end for end in range(6) if list(ways(graph, 0, {end}))}
