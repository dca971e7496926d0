"""The executor that runs graphs on a WebGPU device."""
