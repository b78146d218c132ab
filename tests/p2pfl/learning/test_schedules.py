"""Learning-rate schedules, and AdamW."""

import pytest
import torch

import p2pfl
from p2pfl.errors import ConfigurationError
from p2pfl.learning.optimizers import SGD, Adam, AdamW, at_round, check_schedule


def rates(torch_schedule, rounds=12):
    """Return the learning rates of one of torch's schedules, which starts at 1."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 1.0)
    schedule = torch_schedule(optimizer)
    found = []
    for _ in range(rounds):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


@pytest.mark.parametrize(
    ("name", "options", "theirs"),
    [
        ("step", {"every": 3, "factor": 0.5}, lambda o: torch.optim.lr_scheduler.StepLR(o, 3, 0.5)),
        ("exponential", {"factor": 0.9}, lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)),
        ("linear", {"rounds": 8, "least": 0.2}, lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.2, 8)),
        ("cosine", {"rounds": 12, "least": 0.1}, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12, 0.1)),
    ],
)
def test_schedules_equal_those_of_torch(name, options, theirs):
    ours = p2pfl.schedule(name, **options)
    assert [ours(round) for round in range(1, 13)] == pytest.approx(rates(theirs), abs=1e-12)


def test_schedule_stays_at_its_end():
    assert p2pfl.schedule("cosine", rounds=4)(50) == 0
    assert p2pfl.schedule("linear", rounds=4, least=0.5)(50) == 0.5


def test_schedule_begins_after_a_linear_warmup():
    ours = p2pfl.schedule("step", every=2, factor=0.5, warmup=3)
    assert [ours(round) for round in range(8)] == [0.25, 0.25, 0.5, 0.75, 1, 1, 0.5, 0.5]


def test_inverse_schedule_halves_the_rate():
    ours = p2pfl.schedule("inverse", half=4)
    assert [ours(round) for round in (1, 5, 13)] == [1, 0.5, 0.25]


def inverse(number):
    return 1 / number


@pytest.mark.parametrize("optimizer", [SGD, Adam, AdamW])
def test_optimizer_takes_table_or_function_as_schedule(optimizer):
    assert at_round(optimizer(0.4, schedule={"name": "exponential", "factor": 0.5}), 3) == optimizer(0.1)
    assert at_round(optimizer(0.4, schedule=inverse), 4) == optimizer(0.1)
    assert at_round(plain := optimizer(0.4), 4) is plain


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "cosin", "rounds": 3}, r"unknown optimizer\.schedule 'cosin'; did you mean 'cosine'"),
        ({"name": "cosine", "round": 3}, r"unknown key 'optimizer\.schedule\.round'; did you mean"),
        ({"name": "cosine"}, "missing a required argument: 'rounds'|Missing required argument 'rounds'"),
        ({"name": "cosine", "rounds": 0}, "rounds must be 1 or more, got 0"),
        ({"name": "step", "every": 0}, "every must be 1 or more, got 0"),
        ({"name": "exponential", "factor": -1.0}, "factor must be 0 or more, and finite, got -1.0"),
        ({"name": "linear", "rounds": 3, "warmup": -1}, "warmup must be 0 or more, got -1"),
    ],
)
def test_invalid_schedule_is_refused_in_one_line(table, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        SGD(schedule=table)
    assert "\n" not in str(caught.value)


def test_schedule_of_another_type_is_refused():
    with pytest.raises(ValueError, match=r"schedule must be one such as .*, or a function of the round, got 3"):
        SGD(schedule=3)


def test_growing_schedule_is_refused_before_it_overflows():
    optimizer = SGD(0.1, schedule={"name": "exponential", "factor": 10.0})
    check_schedule(optimizer, 300)
    with pytest.raises(ConfigurationError, match="schedule returned inf for round 400; a factor is 0 or more, and finite"):
        check_schedule(optimizer, 400)
    check_schedule(SGD(0.1), 400)
    check_schedule(None, 400)


def test_schedule_with_negative_factor_is_refused():
    with pytest.raises(ConfigurationError, match=r"schedule returned -0\.5 for round 2"):
        at_round(SGD(schedule=lambda r: inverse(r) - 1), 2)


def test_adamw_equals_pytorch_adamw():
    torch.manual_seed(0)
    ours = torch.randn(4)
    theirs = ours.clone().requires_grad_()
    optimizer, own = torch.optim.AdamW([theirs], 0.05, weight_decay=0.1), AdamW(0.05, weight_decay=0.1)
    state = own.start(ours, 5)
    for _ in range(5):
        gradient = torch.randn(4)
        theirs.grad = gradient.clone()
        optimizer.step()
        own.step(ours, gradient, state, ours)
    assert torch.allclose(ours, theirs.detach(), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: p2pfl.AdamW("fast"), "lr must be a number, got 'fast'"),
        (lambda: p2pfl.SGD(0.1, schedule="cosine"), "schedule must be one such as p2pfl.schedule"),
    ],
)
def test_optimizer_with_a_wrong_type_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
