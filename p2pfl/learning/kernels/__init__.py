"""Gradients and outputs of many models of one architecture at once, by the kind of the architecture."""
