"""Many participants in one process: the same `Node`, on a virtual clock, over a modelled network.

A scenario:   scenario.py (one TOML file for one table of a paper), file_keys.py and run_tables.py (its parts), imports.py,
              network.py, topology.py, budgets.py, claims.py, grid.py (sweeps)
A run:        plan.py (its values), run.py (its objects), exchanges.py, world.py, clock.py, batching.py, recorder.py
Many runs:    engine.py, worker_pool.py, shards.py, parts.py (of an interrupted one), forecast.py, pareto.py (searches)
Results:      results.py, figures.py, objectives.py, curves.py, targets.py, left.py (names of files), findings.py, report/
While it runs: watch.py (state and page), watch_terminal.py, monitor.py (both), snapshots.py
Commands:     cli.py, options.py, run_command.py, pareto_command.py, reproduce.py, data.py
"""
