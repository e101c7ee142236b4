"""What a program may do with values that nobody computed, and what then becomes of the certainty."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from vramscope.prediction import Prediction, predict  # noqa: E402

pytest.importorskip("torch.utils.backend_registration")
if not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this torch has no devices in Python", allow_module_level=True)

MIB = 1 << 20


def _line(mark: str) -> str:
    text = Path(__file__).read_text().splitlines()
    return f"{Path(__file__).name}:{next(i for i, one in enumerate(text, 1) if one.endswith(f'# {mark}'))}"


def _loss() -> Any:
    weight = torch.zeros(256, device="cuda", requires_grad=True)
    return (weight * torch.randn(256, device="cuda")).sum()


def _seen(program: Callable[[Any], Any]) -> Prediction:
    return predict(lambda: program(_loss()))


def test_what_is_logged_leaves_a_prediction_checked():
    def program(loss: Any) -> None:
        import math
        import statistics

        import numpy as np

        total, history = 0.0, []
        for _ in range(3):
            total += loss.item() / 3
            history.append(loss.item())
        print(f"{total:.3f} %.3f {np.mean(history)} {round(total, 3)}" % loss.item(), loss)
        print(math.exp(total), sum(history) / len(history), f"{loss:.4f}", loss.tolist(), max(history))
        print(f"{(loss > 0).sum().item()} of {10}", statistics.__name__, loss.detach().cpu())

    assert _seen(program).reasons == ()


@pytest.mark.parametrize("check", ["isnan", "isinf", "isfinite"])
def test_a_training_is_taken_to_stay_finite(check: str):
    def program(loss: Any) -> None:
        import math

        found = getattr(torch, check)(loss)
        if found.all() != (check == "isfinite") or math.isnan(loss.item()):
            torch.zeros(100 * MIB, device="cuda")
        weight = torch.zeros(8, device="cuda", requires_grad=True)
        weight.sum().backward()
        torch.nn.utils.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)

    found = _seen(program)

    assert found.certainty == "checked", found.reasons
    assert found.peak_allocated_bytes < MIB


def _branch(loss: Any) -> None:
    if loss.item() > 0.5:  # branch
        torch.zeros(100 * MIB, device="cuda")


def _tensor_branch(loss: Any) -> None:
    if loss > 0.5:  # tensor
        torch.zeros(100 * MIB, device="cuda")


def _host_branch(loss: Any) -> None:
    losses = torch.zeros(3)
    losses[1] = loss.item()
    if losses.mean() > 0.5:  # host
        torch.zeros(100 * MIB, device="cuda")


def _size(loss: Any) -> None:
    n = (loss > 0).sum().item()
    torch.zeros(n + 1, device="cuda")  # size


def _loop(loss: Any) -> None:
    for _ in range((loss > 0).sum().item()):  # loop
        torch.zeros(8, device="cuda")


def _converted(loss: Any) -> None:
    total = float(loss)  # converted
    print(total)


def _copied(loss: Any) -> None:
    if loss.cpu().exp().sum() > 3:  # copied
        torch.zeros(8, device="cuda")


def _logarithm(loss: Any) -> None:
    import math

    if math.exp(loss.item()) > 20:  # logarithm
        torch.zeros(8, device="cuda")


def _summed(loss: Any) -> None:
    import numpy as np

    if np.mean([loss.item(), loss.item()]) > 20:  # summed
        torch.zeros(8, device="cuda")


@pytest.mark.parametrize(
    ("program", "mark"),
    [
        (_branch, "branch"), (_tensor_branch, "tensor"), (_host_branch, "host"), (_size, "size"),
        (_loop, "loop"), (_converted, "converted"), (_copied, "copied"), (_logarithm, "logarithm"),
        (_summed, "summed"),
    ],
)  # fmt: skip
def test_a_value_that_decides_is_an_assumption_with_its_line(program: Callable[[Any], Any], mark: str):
    found = _seen(program)

    assert found.certainty == "estimate"
    assert any(_line(mark) in reason for reason in found.reasons), found.reasons


def test_small_values_that_come_from_the_host_are_known():
    def program() -> None:
        ids = torch.tensor([[3, 5, 0, 0], [1, 2, 3, 0]]).to("cuda")
        mask = ids != 0
        lengths = mask.sum(1)
        assert lengths.tolist() == [2, 3]
        assert lengths.max().item() == 3
        assert not mask.all()
        steps = torch.zeros((), dtype=torch.int64, device="cuda")
        steps += 7
        assert steps == 7
        kept = torch.zeros(MIB, int(lengths.max()), device="cuda")
        del kept

    found = predict(program)

    assert found.certainty == "checked", found.reasons
    assert found.peak_allocated_bytes // MIB == 12


def test_what_overwrites_known_values_makes_them_unknown():
    def program() -> None:
        known = torch.zeros(4, device="cuda")
        view = known[:2]
        view.add_(torch.randn(2, device="cuda"))
        if known.sum() > 0:
            torch.zeros(8, device="cuda")

    assert predict(program).certainty == "estimate"


def test_a_mask_of_known_values_has_a_known_size():
    def program() -> None:
        ids = torch.tensor([3, 5, 0, 0] * 1024).to("cuda")
        places = (ids != 0).nonzero()
        assert places.shape == (2048, 1)
        return places

    found = predict(program)

    assert found.certainty == "estimate"
    assert found.peak_allocated_bytes >= 8 * 4096 + 8 * 2048


@pytest.mark.parametrize("name", ["nonzero", "unique", "masked_select"])
def test_a_size_that_follows_from_unknown_values_is_unknown(name: str):
    def program() -> None:
        noise = torch.randn(1024, device="cuda")
        getattr(torch, name)(noise, *([noise > 0] if name == "masked_select" else []))

    found = predict(program)

    assert found.certainty == "cannot_tell"
    assert "test_values.py" in found.reasons[0]


def test_what_is_no_number_among_known_values_stays_so():
    sizes = []

    def program(_: Any) -> None:
        labels = torch.tensor([1.0, torch.nan, 2.0]).cuda()
        sizes.append(len(labels[~labels.isnan()]))

    _seen(program)

    assert sizes == [2]


def test_inference_mode_takes_composite_operators_apart_as_autograd_does():
    def program(mode: Any) -> Callable[[], None]:
        def run() -> None:
            layers = (torch.nn.LayerNorm(64), torch.nn.Linear(64, 256), torch.nn.Dropout(0.1))
            model = torch.nn.Sequential(*layers).cuda()
            with mode():
                model(torch.randn(512, 64, device="cuda"))

        return run

    apart, whole = predict(program(torch.no_grad)), predict(program(torch.inference_mode))

    assert (whole.reasons, whole.peak_allocated_bytes) == ((), apart.peak_allocated_bytes)


def test_a_sparse_gradient_is_refused_with_its_line_and_not_with_an_error():
    def program(_: Any) -> None:
        table = torch.nn.Embedding(1000, 16, sparse=True).cuda()
        at = torch.randint(0, 1000, (64,)).cuda()
        rows = table(at) * table(at + 1)  # two sparse gradients, which are added
        rows.sum().backward()  # a sparse gradient
        torch.optim.SparseAdam(table.parameters()).step()

    found = _seen(program)

    assert found.certainty == "cannot_tell"
    assert found.reasons[0].endswith(f"({_line('a sparse gradient')})")


def test_counts_of_unknown_numbers_are_as_many_as_they_are_at_least():
    def program(_: Any) -> None:
        chosen = torch.randn(64, 300, device="cuda").argmax(1)
        assert torch.bincount(chosen, minlength=300).shape == (300,)

    found = _seen(program)

    assert found.certainty == "estimate"
    assert "minlength" in found.reasons[0]


def test_nested_tensors_end_a_dry_run_with_what_to_do():
    def program(_: Any) -> None:
        parts = [torch.randn(n, 8, device="cuda") for n in (3, 5)]
        torch.nested.nested_tensor(parts, layout=torch.jagged)

    with pytest.raises(NotImplementedError, match="pad the sequences"):
        _seen(program)


def test_a_parameter_that_is_drawn_until_it_fits_leaves_a_prediction_checked():
    def program(_: Any) -> None:
        layer = torch.nn.Linear(64, 64)
        torch.nn.init.trunc_normal_(layer.weight, std=0.02)
        torch.nn.init.trunc_normal_(layer.weight, std=2.0)
        layer.cuda()

    assert _seen(program).reasons == ()


def test_a_parameter_that_is_drawn_on_the_card_takes_what_a_second_draw_takes():
    def program(std: float) -> Callable[[], None]:
        def run() -> None:
            torch.nn.init.trunc_normal_(torch.empty(MIB, device="cuda"), std=std)

        return run

    near, far = predict(program(1.0)), predict(program(0.02))

    assert (near.reasons, far.reasons) == ((), ())
    # The parameter and masks; with numbers out of bounds the last result, new numbers and the next result.
    assert far.peak_allocated_bytes == (4 + 3) * MIB
    assert near.peak_allocated_bytes == (4 + 3 * 4 + 1) * MIB


def test_the_number_of_a_truth_is_zero_or_one_and_both_are_run():
    def program(loss: Any) -> None:
        right = (torch.randn(4, device="cuda") > 0).cpu()
        score = torch.tensor([int(right[at]) for at in range(4)], dtype=torch.float)
        print(f"{score.mean():.2f}", loss)

    predicted = _seen(program)

    assert [(one.what, one.answer) for one in predicted.otherwise] == [("int()", "always true")]
    assert predicted.fits is True


def test_the_weights_of_a_model_on_the_host_are_printed():
    def program(_: Any) -> None:
        model = torch.nn.Linear(4, 1)
        print("{:+.2f}".format(model.bias[0]), [f"{one:.1f}" for one in model.weight.view(-1)])  # noqa: UP032
        model.cuda()(torch.ones(2, 4, device="cuda"))

    assert _seen(program).reasons == ()
