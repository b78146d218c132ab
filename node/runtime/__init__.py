"""Start and supervision of a node: from a loaded folder to running tasks and back.

`run` is the entry point; `assembly` creates the objects, `connectivity` the transports.
"""
