"""The hardware table: names as people and drivers spell them, figures that agree in size."""

from __future__ import annotations

import pytest

from twinpool.errors import ConfigError
from twinpool.spec.hardware import HARDWARE, Hardware, find_hardware
from twinpool.units import GIB, MIB

DEVICES = [device for device in HARDWARE if device.name != "cpu"]
EVERY = pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H100", "H100-SXM"),
        ("h100 sxm", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("h100-pcie", "H100-PCIe"),
        ("H100 NVL", "H100-NVL"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("rtx5090", "RTX-5090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("A100-40", "A100-40GB"),
        ("a100", "A100-80GB"),
        ("gb10", "DGX-Spark"),
        ("CPU", "cpu"),
    ],
)
def test_a_device_is_found_as_people_and_drivers_spell_it(spelling: str, name: str) -> None:
    assert find_hardware(spelling).name == name


def test_memory_is_what_the_driver_reports() -> None:
    device = find_hardware("H100")
    assert device.reported_mib == 81559
    assert device.memory_bytes == 81559 * MIB == 85520809984


def test_memory_without_a_report_is_nominal() -> None:
    device = find_hardware("MI355X")
    assert device.reported_mib is None
    assert device.memory_bytes == 288 * GIB
    assert "nominal" in device.source


def test_the_cpu_must_be_measured_or_given() -> None:
    cpu = find_hardware("cpu")
    assert cpu == Hardware(name="cpu", aliases=cpu.aliases, source=cpu.source)
    assert "measured" in cpu.source


@EVERY
def test_every_device_has_its_figures_and_their_source(device: Hardware) -> None:
    assert device.memory_bytes is not None
    assert device.bandwidth_bytes_per_s is not None
    assert device.peak_bf16_flops is not None
    assert 20 * GIB < device.memory_bytes < 300 * GIB
    # A figure in the wrong unit would leave these ranges by a factor of a thousand: seconds to
    # read the whole memory once, and operations per byte read.
    assert 0.01 < device.memory_bytes / device.bandwidth_bytes_per_s < 0.5
    assert 30 < device.peak_bf16_flops / device.bandwidth_bytes_per_s < 600
    assert device.source


@EVERY
def test_rates_are_dense_and_the_host_link_is_slower_than_memory(device: Hardware) -> None:
    if device.peak_fp8_flops is not None:
        assert device.peak_bf16_flops is not None
        assert 1.0 <= device.peak_fp8_flops / device.peak_bf16_flops < 2.1
    if device.host_link_bytes_per_s is not None:
        assert device.bandwidth_bytes_per_s is not None
        assert 2 * device.host_link_bytes_per_s < device.bandwidth_bytes_per_s


def test_no_spelling_belongs_to_two_devices() -> None:
    for device in HARDWARE:
        for spelling in (device.name, *device.aliases):
            assert find_hardware(spelling) is device


def test_an_unknown_device_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        find_hardware("H10O")
    assert "'H10O'" in caught.value.message
    assert "H100-SXM" in caught.value.hint


def test_a_name_that_is_near_nothing_is_answered_with_all_of_them() -> None:
    with pytest.raises(ConfigError) as caught:
        find_hardware("§§")
    assert all(device.name in caught.value.hint for device in HARDWARE)
