"""The tasks that come with p2pfl: `concept-shift` (synthetic) and `digits` (scikit-learn's)."""
