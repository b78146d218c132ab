"""With this folder on PYTHONPATH, every import of torch fails, in this process and in those that it starts."""

import sys

sys.modules["torch"] = None  # the import system then raises ModuleNotFoundError
