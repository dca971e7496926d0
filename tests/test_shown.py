"""The objects that users meet first have a one-line repr, and a table in notebooks."""

from __future__ import annotations

import dataclasses
import re

import pytest

import wgpu_backend as wb

HOSTILE = wb.DeviceInfo(
    "vulkan:0", "<b>Card</b> & Co", kind="discrete", api="Vulkan", total_memory=3 << 30
)


@pytest.fixture(scope="module")
def model():
    with wb.load(device="cpu", num_ctx=512) as opened:
        yield opened


def texts(html: str) -> list[str]:
    return re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", html)


def test_a_device_is_one_line_without_its_limits():
    info = dataclasses.replace(HOSTILE, limits={"max-bind-groups": 4}, features=("shader-f16",))
    assert repr(info) == "DeviceInfo(vulkan:0, <b>Card</b> & Co, discrete, Vulkan, 3.0 GiB)"


def test_a_device_is_a_table_whose_texts_are_escaped():
    html = HOSTILE._repr_html_()
    assert texts(html)[:4] == ["id", "vulkan:0", "name", "&lt;b&gt;Card&lt;/b&gt; &amp; Co"]
    assert texts(html)[-2:] == ["memory", "3.0 GiB"]


def test_devices_are_a_line_and_a_table_with_a_row_each():
    devices = wb.Devices()
    assert repr(devices).startswith("Devices(")
    assert "\n" not in repr(devices)
    assert all(info.id in repr(devices) for info in devices)
    html = devices._repr_html_()
    assert html.count("<tr>") == 1 + len(devices)
    assert texts(html)[:3] == ["id", "name", "kind"]


def test_a_model_is_a_line_and_a_table(model):
    assert re.fullmatch(
        r"LanguageModel\(.*story\.gguf: llama, [\d.]+ M in [\d.]+ MiB of [\w/]+, 512 positions, "
        r"cpu NumPy\)",
        repr(model),
    )
    assert texts(model._repr_html_())[::2] == [
        "file", "architecture", "weights", "context", "device",
    ]  # fmt: skip


def test_what_belongs_to_a_model_is_a_line(model):
    assert re.fullmatch(
        r"Backend\('.*story.gguf' on cpu, \d+ weights loaded\)", repr(model.backend)
    )
    assert re.fullmatch(r"Tokenizer\(\d+ tokens\)", repr(model.tokenizer))
    with model.backend.new_context() as context:
        assert repr(context) == "Context(cpu, 0 ops made)"
        assert repr(context.zeros(2, 3)) == "Tensor((2, 3), f32, zeros)"
    assert repr(context) == "Context(cpu, 0 ops made, closed)"
