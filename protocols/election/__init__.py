"""Election of a coordinator: a core without input and output, similar to Raft.

See docs/explanation/elections.md for the rules and their limits.
"""
