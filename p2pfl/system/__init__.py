"""Operating system services for nodes, the simulator and their commands: files, memory, terminal text.

This package imports nothing else of the project except `p2pfl.errors`.
"""
