"""scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels from 0 to 16. No data file is needed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from p2pfl.errors import MissingRequirementError


def read() -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels, [1797, 64], and the labels, [1797].

    They are read from the data file inside scikit-learn, because importing scikit-learn would take a large part of a
    node's start time.

    Raises:
        MissingRequirementError: scikit-learn is not installed.
    """
    path = file()
    if path is None:
        raise MissingRequirementError("the digits need scikit-learn: pip install 'p2pfl-node[metrics]'")
    if not path.exists():  # the file is elsewhere in this version
        from sklearn.datasets import load_digits

        data = load_digits()
        return data.data, data.target
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)
    return table[:, :-1], table[:, -1]


def file() -> Path | None:
    """Return the usual place of the data file inside scikit-learn; None if that is not installed."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
