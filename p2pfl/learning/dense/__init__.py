"""Training of dense networks with NumPy: linear models and MLPs, for nodes without PyTorch.

Models have the layout, the initial values and the batches of the same network in torch, so that nodes of both kinds can
be in one federation. Nothing here imports torch.
"""
