// As top_k.wgsl, with the keys of a part in registers, a work group a part.
// @import kernels/gpu/lib/largest

const WG: u32 = 256u;
const GATHERED: bool = false;

struct Params {
    cols: u32, k: u32, length: u32, part: u32, parts: u32, x_offset: u32, ids_offset: u32,
}

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> ids: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<i32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = params.x_offset + group.y * params.cols;
    let begin = group.x * params.part;
    let size = min(params.part, params.length - begin);
    var items: Items;
    // @unroll
    for (var i = 0u; i < ITEMS; i++) {
        let place_i = begin + min(i * WG + lane, size - 1u);
        var id_i = place_i;
        if GATHERED {
            id_i = u32(ids[params.ids_offset + group.y * params.length + place_i]);
        }
        let key_i = key_of_bits(x[row + min(id_i, params.cols - 1u)]);
        items.ids[i] = id_i;
        items.keys[i] = select(0u, key_i, i * WG + lane < size && (!GATHERED || id_i < params.cols));
    }
    let count = collect_largest(&items, lane);
    let out = (group.y * params.parts + group.x) * params.k;
    for (var i = lane; i < count; i += WG) {
        let rank = rank_of(i, count);
        if rank < params.k {
            y[out + rank] = i32(collected[i].y);
        }
    }
    for (var i = count + lane; i < params.k; i += WG) {
        y[out + i] = -1;
    }
}
