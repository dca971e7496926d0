"""Types of wgpu-native that are parsed together are those that cffi finds one by one."""

import inspect

import wgpu

from wgpu_backend.device import c_types
from wgpu_backend.device.c_types import parse_c_types


def test_types_are_those_of_the_parser():
    parse_c_types()
    ffi = wgpu.backends.wgpu_native._api.ffi
    known = dict(ffi._parsed_types)
    for name in ("WGPULimits", "WGPUAdapter", "WGPUFeatureName", "char"):
        pointer, array = f"{name} *", f"{name}[]"
        # Spelt so that cffi has not met them, and parses.
        assert ffi.typeof(f"  {pointer}") is known[pointer][0]
        assert ffi.typeof(f"  {array}") is known[array][0]


def test_callbacks_are_spelt_as_wgpu_spells_them_and_are_those_of_the_parser():
    parse_c_types()
    library = wgpu.backends.wgpu_native._api
    source = inspect.getsource(library)
    for text in c_types._CALLBACKS:
        assert f'"{text}"' in source
        known, is_function = library.ffi._parsed_types[text]
        assert is_function
        assert library.ffi.callback(f" {text}", lambda *_: None) is not None  # which is parsed
        assert library.ffi._parsed_types[f" {text}"] == (known, True)


def test_callbacks_of_types_that_are_gone_are_left_to_the_parser(monkeypatch):
    monkeypatch.setattr(c_types, "_STRUCT", "struct wgpu_backend_other_types")
    monkeypatch.setattr(c_types, "_CALLBACKS", ("void(WGPUGone)",))
    parse_c_types.__wrapped__()
    assert "void(WGPUGone)" not in wgpu.backends.wgpu_native._api.ffi._parsed_types
