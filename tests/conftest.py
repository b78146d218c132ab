import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread():
    """Equal bits need equal threads; and two cores are shared by much else."""
    torch.set_num_threads(1)
