"""The reference for products with a scale per tile; tests on GPUs compare the package with it."""

import pytest

torch = pytest.importorskip("torch")

from tests.support.block_scaled import (  # noqa: E402
    ACROSS,
    DOWN,
    SQUARE,
    error,
    errors_in_whole,
    exact,
    factors,
    in_tiles,
    linear,
    linear_in_whole,
)

WHOLE = (1000, 1000)


@pytest.mark.parametrize("tile", [ACROSS, DOWN, SQUARE])
def test_each_number_keeps_three_bits_beside_the_largest_of_its_tile(
    tile: tuple[int, int],
) -> None:
    """Numbers down to 2 ** -14 of the largest are off by at most a sixteenth."""
    x = torch.randn(300, 200, generator=torch.Generator().manual_seed(1)).double()
    rounded = in_tiles(x, tile)
    near = x.abs() > x.abs().max() * 2**-13
    assert rounded.shape == x.shape
    assert float(((rounded - x).abs() / x.abs())[near].max()) <= 1 / 16
    assert float((rounded - x).abs().max()) > 0


def test_scales_are_powers_of_two_and_nothing_is_cut_off() -> None:
    """So numbers of three bits stay what they are, whatever lies beside them."""
    x = torch.tensor([[448.0, 1.75 * 2**-6, 0.0, 447.0]] * 2) * 2.0**-30
    rounded = in_tiles(x, ACROSS) * 2.0**30
    assert rounded.tolist() == [[448.0, 1.75 * 2**-6, 0.0, 448.0]] * 2
    assert not in_tiles(torch.zeros(3, 3), SQUARE).any()


def test_tokens_and_features_of_any_magnitude_are_as_exact_as_others() -> None:
    """One scale for all of them in E4M3 loses the small ones, in E5M2 it does not."""
    made = factors(256, 384, 640)
    errors = [error(*both) for both in zip(linear(*made), exact(*made), strict=True)]
    assert all(0.03 < each < 0.045 for each in errors)
    x, weight, grad = (in_tiles(each, WHOLE) for each in made)
    whole = (x @ weight.t(), grad @ weight, grad.t() @ x)
    assert min(error(*both) for both in zip(whole, exact(*made), strict=True)) > 0.3
    out, dx, dw = (error(*both) for both in zip(linear_in_whole(*made), exact(*made), strict=True))
    assert min(out, dw) > 0.3
    # Errors of E5M2 are twice those of E4M3, and the product has one factor in each.
    assert dx == pytest.approx(errors[1] * ((4 + 1) / (1 + 1)) ** 0.5, rel=0.05)


def test_the_package_was_as_far_off_with_one_scale_per_tensor() -> None:
    """By its products with delayed scaling on one H200, on 2026-11-29."""
    measured = (0.42269, 0.05892, 0.41427)
    assert tuple(errors_in_whole().values()) == pytest.approx(measured, rel=1e-3)


def test_tiles_of_the_wrong_shape_are_far_from_the_reference() -> None:
    """So the comparison on GPUs tells them apart: rounded to bf16 it is itself 0.0017 off."""
    made = factors(256, 384, 640)
    out, dx, dw = linear(*made)
    x, grad = (
        {tile: in_tiles(each, tile) for tile in (ACROSS, DOWN)} for each in (made[0], made[2])
    )
    weight = in_tiles(made[1], SQUARE)
    assert error(x[DOWN] @ weight.t(), out) > 0.2
    assert error(grad[DOWN] @ weight, dx) > 0.2
    assert error(grad[DOWN].t() @ x[ACROSS], dw) > 0.2
    assert error(grad[ACROSS].t() @ x[DOWN], dw) > 0.2
    assert error(out.bfloat16(), out) < 0.002
