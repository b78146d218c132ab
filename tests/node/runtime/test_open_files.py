"""The limit on open files: it is raised at the start, and named if it is too low for the links with all neighbours."""

import pytest

from p2pfl._util.machine import raise_open_files
from p2pfl.node.runtime.run import OTHER_FILES, check_open_files
from tests.support.logs import log_to

resource = pytest.importorskip("resource")


def test_limit_on_open_files_is_raised_to_hard_limit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard <= 512:
        pytest.skip("needs a finite hard limit on open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        assert raise_open_files() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("limit", "warned"), [(None, False), (1000 + OTHER_FILES, False), (999 + OTHER_FILES, True)])
def test_limit_that_is_too_low_for_neighbours_is_named(limit, warned):
    said = []
    check_open_files(limit, 1000, log_to(said))
    assert bool(said) is warned
    if warned:
        assert "LimitNOFILE" in str(said[0])
