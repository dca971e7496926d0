"""Types of wgpu-native that are parsed together are those that cffi finds one by one."""

import wgpu

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
