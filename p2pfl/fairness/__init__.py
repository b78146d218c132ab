"""Fairness between groups: metrics, their differentiable relaxations, tasks, and PraFFL.

Sources: Zafar et al., FedFB, FairFed, PraFFL; each module names its own sources.
"""
