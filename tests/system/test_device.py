"""Devices are named by the caller or by the environment, and one that is missing is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import qkv
from qkv.cli.main import main
from qkv.system import device
from qkv.system.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(device.VARIABLE, raising=False)


@pytest.fixture
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 4)


@pytest.mark.usefixtures("four_devices")
def test_training_takes_the_accelerator_and_inference_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.training_device() == torch.device("cuda")
    assert device.inference_device() == CPU
    assert device.inference_device("cuda:3") == torch.device("cuda:3")
    monkeypatch.setenv(device.VARIABLE, "cpu")
    assert device.training_device() == CPU
    monkeypatch.setenv(device.VARIABLE, "cuda:1")
    assert device.inference_device() == torch.device("cuda:1")
    assert device.inference_device("cpu") == CPU  # the argument goes before the environment


@pytest.mark.usefixtures("four_devices")
@pytest.mark.parametrize("name", ["cuda:4", "gpu", "CPU", "cuda:-1"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"device: there is no device .*; choose from cpu, cuda, cuda:0, .* cuda:3$"):
        device.named_device(name)


def test_the_function_and_the_command_refuse_a_device(
    straight: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="device: there is no device 'gpu' on this machine"):
        qkv.load(straight, device="gpu")
    monkeypatch.setenv(device.VARIABLE, "gpu")
    capsys.readouterr()
    assert main(["generate", str(straight), "ab"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("qkv: QKV_DEVICE: there is no device 'gpu' on this machine; choose from cpu")
    assert said.out == ""
