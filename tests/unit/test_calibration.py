"""Calibration files: written and read back, and every fault named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.kernels import flat

from mimo_launch.estimate.device_constants import Calibration, CalibrationError, constants, load


def test_reads_back_what_it_wrote(tmp_path: Path) -> None:
    made = replace(Calibration(), device="other", date="2026-08-01", peak=123.5, context_memory=0.0)
    made = replace(made, kernels=flat(123.0))
    made.dump(tmp_path / "c.json")
    assert load(tmp_path / "c.json") == made


def test_a_file_of_the_first_version_is_read_if_it_has_no_rates_of_whole_layers(
    tmp_path: Path,
) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"version": 1, "constants": {"p2p_bandwidth": 100}}')
    assert load(file) == replace(Calibration(), p2p_bandwidth=100.0)
    file.write_text('{"version": 1, "constants": {"language_fp8_speed": 1.2}}')
    with pytest.raises(CalibrationError, match="which `bench --calibrate` measures"):
        load(file)


def test_kernels_that_a_file_leaves_out_keep_their_rates(tmp_path: Path) -> None:
    file, made, loss = tmp_path / "c.json", flat(5.0), flat(5.0).grids["loss"]
    replace(Calibration(), kernels=replace(made, grids={"loss": loss})).dump(file)
    read = load(file).kernels
    assert read.grids == {**Calibration().kernels.grids, "loss": loss}
    assert read.device == "flat"


def test_what_a_file_leaves_out_keeps_its_default(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text('{"version": 2, "constants": {"p2p_bandwidth": 100}}')
    assert load(file) == replace(Calibration(), p2p_bandwidth=100.0)


def test_every_constant_says_what_it_is_and_where_it_comes_from() -> None:
    assert {each.name for each in constants()} == set(Calibration.__slots__) - {
        "device",
        "date",
        "kernels",
    }
    for each in constants():
        assert all(each.metadata[key] for key in ("unit", "meaning", "source")), each.name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "a calibration is a JSON object, not a list"),
        ('{"version": 3}', "`version` is `3`, a whole number, and this reads 2"),
        ("{}", "`version` is nothing"),
        ('{"version": 1, "constant": {}}', "did you mean `constants`?"),
        ('{"version": 1, "device": 3}', "`device` is `3`, a whole number; it must be text"),
        ('{"version": 1, "constants": 3}', "it must be an object"),
        ('{"version": 1, "constants": {"paek": 1}}', "did you mean `peak`?"),
        ('{"version": 1, "constants": {"peak": "fast"}}', "must be a finite number"),
        ('{"version": 1, "constants": {"peak": NaN}}', "must be a finite number"),
        ('{"version": 1, "constants": {"peak": true}}', "must be a finite number"),
        ('{"version": 1, "constants": {"peak": -1}}', "must be a finite number"),
        ('{"version": 1, "constants": {"peak": 0}}', "`peak` is 0 TFLOP/s"),
        ('{"version": 1, "constants": {"fp32_speed": 0}}', "`fp32_speed` is 0 x bf16"),
        ('{"version": 1, "constants": {"fp64_speed": 0.0}}', "`fp64_speed` is 0 x bf16"),
        ('{"version": 1, "constants": {"head": 1}}', "`head` is one rate for all sizes"),
        ('{"version": 2, "kernels": {}}', "a table of kernels is an object with `kernels`"),
    ],
)
def test_every_fault_is_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(text)
    with pytest.raises(CalibrationError) as error:
        load(file)
    assert said in str(error.value)
    assert str(file) in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="no such file"):
        load(tmp_path / "absent.json")


def test_a_constant_may_be_zero_unless_it_divides(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"version": 1, "constants": {"step_overhead": 0}}))
    assert load(file).step_overhead == 0
