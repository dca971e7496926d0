// Weights as vectors of four words of 64 bits: of a load, a rasteriser asks once for each lane whether
// it is on, so one of 32 bytes is cheaper than two of 16.

@group(0) @binding(0) var<storage, read> buf: array<vec4<u64>>;
