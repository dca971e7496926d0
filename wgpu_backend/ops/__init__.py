"""Operations: a Python function each that checks operands and describes a launch, plus its WGSL."""
