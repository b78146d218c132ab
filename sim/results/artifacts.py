"""Names of files and folders in the folder of a run."""

SCENARIO, SUMMARY, REPORT = "scenario.toml", "summary.json", "report.html"
PARTS = "parts"  # finished parts of an unfinished run
CANDIDATES = "candidates"  # solved candidates of an unfinished search
MODELS = "models"  # models of a search's fronts, or of the nodes of a run
