"""What the files in the folder of a run are called."""

SCENARIO, SUMMARY, REPORT = "scenario.toml", "summary.json", "report.html"
PARTS = "parts"  # of a run that is not finished: what is
CANDIDATES = "candidates"  # of a search that is not finished: those that are solved
MODELS = "models"  # of a search: those of its fronts
