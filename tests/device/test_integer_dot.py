import pytest

from wgpu_backend.device.adapters import has_integer_dot
from wgpu_backend.graph.capabilities import DeviceInfo


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H200", "NVIDIA GeForce RTX 4090", "NVIDIA GeForce GTX 1080 Ti",
        "AMD Radeon RX 7900 XTX (RADV NAVI31)", "AMD Radeon RX 6600 (RADV NAVI23)",
        "AMD Radeon VII (RADV VEGA20)", "AMD Radeon RX 7600", "AMD Radeon RX 5300M (RADV NAVI14)",
        "Intel(R) Arc(tm) B580 Graphics (BMG G21)", "Intel(R) UHD Graphics 770 (ADL-S GT1)",
        "Intel(R) Iris(R) Xe Graphics (TGL GT2)",
    ],
)  # fmt: skip
def test_gpus_of_today_multiply_packed_bytes(name):
    assert has_integer_dot(DeviceInfo("vulkan:0", name, kind="discrete", api="Vulkan"))


@pytest.mark.parametrize(
    "name",
    [
        "AMD Radeon RX Vega (RADV VEGA10)", "Null hardware (RADV POLARIS10)",
        "Radeon RX 580 Series", "AMD Radeon RX 5700 XT (RADV NAVI10)", "AMD Radeon RX 5700 XT",
        "AMD Radeon(TM) Vega 8 Graphics",
        "NVIDIA GeForce GTX 980", "NVIDIA GeForce GT 730", "Intel(R) HD Graphics 530 (SKL GT2)",
        "Intel(R) UHD Graphics 620 (KBL GT2)", "Intel(R) Iris(R) Plus Graphics 655 (CFL GT3)",
    ],
)  # fmt: skip
def test_older_gpus_do_not(name):
    assert not has_integer_dot(DeviceInfo("vulkan:0", name, kind="integrated", api="Vulkan"))


@pytest.mark.parametrize(
    ("kind", "api"),
    [("software", "Vulkan"), ("virtual", "Vulkan"), ("discrete", "Metal"), ("discrete", "D3D12")],
)
def test_other_devices_write_it_out(kind, api):
    assert not has_integer_dot(DeviceInfo("0", "some device", kind=kind, api=api))
