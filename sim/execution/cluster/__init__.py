"""Runs on the machines of a Ray cluster.

Ray starts the workers, schedules the runs and moves the bytes; everything that is sent is encoded here. Importing this
subpackage does not import Ray.
"""
