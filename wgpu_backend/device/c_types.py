# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false
"""C types of wgpu-native, parsed all at once instead of one by one.

For every name of a type that it has not met, cffi has its parser read all 430 typedefs of the
library again: 30 ms for each of some 50 names, a third of what a small command takes. Here all
pointers, arrays and callbacks are fields of one struct, which is parsed once, and cffi finds their
types where it looks first.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

_STRUCT = "struct wgpu_backend_types"
_NAME = re.compile(r"WGPU\w+")
# As wgpu-py spells them. What a version spells in another way, or lacks, cffi parses by itself.
_CALLBACKS = (
    "void(WGPURequestDeviceStatus, WGPUDevice, WGPUStringView, void *, void *)",
    "void(WGPUDevice const *, WGPUDeviceLostReason, WGPUStringView, void *, void *)",
    "void(WGPUDevice const *, WGPUErrorType, WGPUStringView, void *, void *)",
    "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)",
)


@cache
def parse_c_types() -> None:
    """Register wgpu-native's pointers, arrays and callbacks with cffi, in one parse of 70 ms."""
    library = find_spec("wgpu.backends.wgpu_native") and import_module("wgpu.backends.wgpu_native")
    ffi: Any = getattr(getattr(library, "_api", None), "ffi", None)
    known: Any = getattr(ffi, "_parsed_types", None)
    if not isinstance(known, dict):
        # Another cffi or wgpu-py, which parses its declarations as it always did.
        return
    typedefs: list[str] = ffi.list_types()[0]
    names = [n for n in typedefs if n.startswith("WGPU") and not n.startswith("WGPUProc")]
    names += ["char", "uint8_t"]
    fields = "".join(f"{name} *p{i}; {name} (*a{i})[];" for i, name in enumerate(names))
    callbacks = [text for text in _CALLBACKS if set(_NAME.findall(text)) <= {*typedefs}]
    functions = (text.replace("(", f" (*f{i})(", 1) for i, text in enumerate(callbacks))
    fields += "".join(f"{function};" for function in functions)
    ffi.cdef(f"{_STRUCT} {{ {fields} }};")
    made = dict(ffi.typeof(_STRUCT).fields)
    for i, name in enumerate(names):
        pointer, array = made[f"p{i}"].type, made[f"a{i}"].type.item
        known |= dict.fromkeys((f"{name} *", f"{name} * "), (pointer, False))
        known |= dict.fromkeys((f"{name}[]", f"{name} []"), (array, False))
    # True: a function's type, of which cffi makes a pointer itself.
    known |= {text: (made[f"f{i}"].type, True) for i, text in enumerate(callbacks)}
