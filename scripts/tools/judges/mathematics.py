"""Judges of the mathematics: libraries of the field compute the same figures as p2pfl."""

from __future__ import annotations

from scripts.tools.judges import Judge

JUDGES: list[Judge] = []
