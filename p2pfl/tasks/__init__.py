"""The tasks that come with p2pfl: `concept-shift` (synthetic), `digits`, `images` (real data sets) and `classification`."""
