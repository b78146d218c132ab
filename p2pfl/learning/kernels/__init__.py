"""Gradients and outputs of many models of one architecture at once.

`kernel` chooses the kernel for a task: hand-written gradients for chains of layers, `torch.func` for other modules.
"""
