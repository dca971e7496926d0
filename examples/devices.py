"""Print a line for each device of this machine, best first, with its capabilities.

::

    $ python examples/devices.py
    vulkan:0   llvmpipe (LLVM 15.0.6, 256 bits)  software   Vulkan  llvmpipe Mesa 25.0.7
               f16 yes, subgroups yes, clock yes; bindings up to 128 MiB
    cpu        NumPy                             cpu        NumPy
"""

import wgpu_backend as wb


def main() -> None:
    devices = wb.Devices()
    width = max(len(info.name) for info in devices)
    for info in devices:
        print(f"{info.id:<10} {info.name:<{width}}  {info.kind:<10} {info.api:<7}", info.driver)
        if info.kind != "cpu":
            print(" " * 10, abilities(info))
    print(f"\nwb.load() takes {devices[0].id}; device='cpu' takes NumPy.")


def abilities(info: wb.DeviceInfo) -> str:
    features = {"f16": "shader-f16", "subgroups": "subgroup", "clock": "timestamp-query"}
    words = [f"{word} {'yes' if f in info.features else 'no'}" for word, f in features.items()]
    largest = info.limits["max-storage-buffer-binding-size"] >> 20
    return f"{', '.join(words)}; bindings up to {largest} MiB"


if __name__ == "__main__":
    main()
