"""Data sets and their division among nodes: file formats, images, tables, partitions.

Data is read from `P2PFL_DATA` or from a folder that an option names; nothing is downloaded.
"""
