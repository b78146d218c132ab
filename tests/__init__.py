"""Tests; `tests.support` has what they share."""
