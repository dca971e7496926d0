// y = x in f16, all columns of one k together: each column divided by the power of two that brings its largest
// magnitude to 4 or above, and behind them all these powers, in f32. Columns are filled up to whole vectors
// of eight by zeros. A work group takes eight columns: their largest magnitudes, then 64 values of k at a
// time through workgroup memory.
// @import formats/vec4/f32 as x

const WG: u32 = 128u;
const LANES: u32 = WG / 8u;     // of a column
const STEP: u32 = LANES * 4u;   // values of k at a time
const STRIDE: u32 = 9u;         // columns, and one against bank conflicts
// Biased exponents, as in kernels/gpu/lib/round_f16.
const SMALLEST: u32 = 27u;
const LARGEST: u32 = 249u;
const INFINITY: u32 = 0x7f800000u;
const NAN: u32 = 0x7fc00000u;

struct Params { rows: u32, vectors: u32, words: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> largest: array<u32, WG>;
var<workgroup> values: array<f32, STEP * STRIDE>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let eight = group.x + groups.x * group.y;
    let eights = (params.rows + 7u) / 8u;
    let col = lane / LANES;
    let own = lane % LANES;
    let row = eight * 8u + col;
    let there = row < params.rows;
    let first = params.x_offset / 4u + row * params.vectors;
    // Magnitudes are compared by their bits, so that a NaN is the largest.
    var most = vec4<u32>(0u);
    for (var v = own; there && v < params.vectors; v += LANES) {
        most = max(most, bitcast<vec4<u32>>(abs(x_load4(first + v))));
    }
    largest[lane] = max(max(most.x, most.y), max(most.z, most.w));
    for (var step = LANES / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if own < step {
            largest[lane] = max(largest[lane], largest[lane + step]);
        }
    }
    workgroupBarrier();
    let found = largest[lane - own];
    let plain = found >= SMALLEST << 23u && found < INFINITY;
    let exponent = clamp(found >> 23u, SMALLEST, LARGEST);
    let inverse = select(0.0, bitcast<f32>((256u - exponent) << 23u), plain);
    for (var at = 0u; at < params.vectors; at += LANES) {
        var four = vec4<f32>();
        if there && at + own < params.vectors && plain {
            four = x_load4(first + at + own) * inverse;
        }
        // @unroll
        for (var i = 0u; i < 4u; i++) {
            values[(4u * own + i) * STRIDE + col] = four[i];
        }
        workgroupBarrier();
        put(eight, eights, 4u * at, lane);
        workgroupBarrier();
    }
    if own == 0u && eight < eights {
        let power = select(0u, (exponent - 2u) << 23u, plain);
        y[params.vectors * 16u * eights + row] = select(power, NAN, found >= INFINITY);
    }
    // What is left of the last row of words.
    let used = params.vectors * 16u * eights + eights * 8u;
    for (var i = used + lane; eight == 0u && i < params.words; i += WG) {
        y[i] = 0u;
    }
}

// Pairs of columns of the values of k from `first` on.
fn put(eight: u32, eights: u32, first: u32, lane: u32) {
    for (var i = lane; i < STEP * 4u; i += WG) {
        let k = i / 4u;
        let at = k * STRIDE + i % 4u * 2u;
        if eight < eights && first + k < params.vectors * 4u {
            let pair = vec2<f32>(vec2<f16>(vec2<f32>(values[at], values[at + 1u])));
            y[((first + k) * eights + eight) * 4u + i % 4u] = pack2x16float(pair);
        }
    }
}
