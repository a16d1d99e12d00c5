"""What a job may do to the arithmetic of its thread."""

import pytest
import torch

from transformer_nfn.jobs import no_subnormals


def test_small_numbers_are_zero_inside_only():
    tiny = torch.tensor([1e-30])
    assert (tiny * 1e-10).item() > 0
    with no_subnormals():
        assert (tiny * 1e-10).item() == 0
    assert (tiny * 1e-10).item() > 0
    with pytest.raises(ZeroDivisionError), no_subnormals():
        raise ZeroDivisionError
    assert (tiny * 1e-10).item() > 0


def test_what_was_there_before_comes_back():
    tiny = torch.tensor([1e-30])
    with no_subnormals():
        with no_subnormals():
            pass
        assert (tiny * 1e-10).item() == 0
    assert (tiny * 1e-10).item() > 0
