"""Operating system services that nodes, the simulator and their commands share: files, memory, terminal text.

This package imports nothing else of the project except `p2pfl.errors`.
"""
