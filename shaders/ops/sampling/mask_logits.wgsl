// y = x where the mask has the column's bit, minus infinity elsewhere; values as bits, which no compiler
// may take for numbers that are never infinite. A thread has four columns of every `groups.y`-th row.

const WG: u32 = 64u;

struct Params { rows: u32, cols: u32, words: u32, x_offset: u32, mask_offset: u32 }

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> mask: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

fn masked(value: u32, bits: u32, bit: u32) -> u32 {
    return select(0xff800000u, value, (bits & bit) != 0u);
}

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let first = 4u * id.x;
    if first >= params.cols {
        return;
    }
    for (var row = id.y; row < params.rows; row += groups.y) {
        let word = mask[params.mask_offset + row * params.words + (first >> 5u)];
        let bits = word >> (first & 31u);
        let at = row * params.cols + first;
        let from_at = params.x_offset + at;
        if first + 4u <= params.cols {
            y[at] = masked(x[from_at], bits, 1u);
            y[at + 1u] = masked(x[from_at + 1u], bits, 2u);
            y[at + 2u] = masked(x[from_at + 2u], bits, 4u);
            y[at + 3u] = masked(x[from_at + 3u], bits, 8u);
        } else {
            for (var k = 0u; first + k < params.cols; k++) {
                y[at + k] = masked(x[from_at + k], bits, 1u << k);
            }
        }
    }
}
