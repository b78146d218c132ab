"""Election of a coordinator: a core without input and output in the manner of Raft.

See docs/explanation/elections.md for the rules and their limits.
"""
