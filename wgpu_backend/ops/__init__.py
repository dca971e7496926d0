"""Every op: one Python function that checks operands and describes a launch, one WGSL file."""
