"""Simulations whose nodes a test looks at one by one; a cohort has none."""

from collections.abc import Callable, Sequence
from typing import Any

from p2pfl.sim.scenario.scenario import Scenario
from p2pfl.sim.simulation.simulation import Run, Simulation

LOOKED_AT = "a test looks at single nodes"


def run(
    scenario: Scenario,
    *,
    graph: Any = None,
    order: Sequence[int] | None = None,
    progress: Callable[[int], None] = lambda rounds: None,
    together: bool = False,
) -> Run:
    """Run a scenario, each node by itself unless the nodes may be `together` in a cohort; see Simulation for the others."""
    made = Simulation(scenario, graph, order)
    if not (made.singly or together):
        made = Simulation(scenario, graph, order, singly=LOOKED_AT)
    return made.run(progress)
