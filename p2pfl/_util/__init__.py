"""Private services under all packages: configuration, files, console, memory of the machine, HTTP pages.

Nothing here knows of tasks, nodes or simulations, and nothing here is part of the API: names change without notice.
"""
