// Weights as vectors of four words of 64 bits: a rasteriser tests the execution mask for each lane
// of a load, so one load of 32 bytes is cheaper than two of 16.

@group(0) @binding(0) var<storage, read> buf: array<vec4<u64>>;
