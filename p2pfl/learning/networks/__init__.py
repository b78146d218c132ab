"""Networks that tasks name: models for images, and weights from files.

Tasks that get a module from the user need none of these.
"""
