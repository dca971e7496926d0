// y[tile, :] = an expert, or -1, and up to `size` pairs t · used + u with ids[t, u] that expert, filled
// up with -1. A work group an expert: its tiles begin where `before / size + expert` says, `before`
// being the pairs of lower experts; that leaves room for what every one of those rounds up.
// @import lib/experts/expert_of
// @import lib/index/grid

const WG: u32 = 64u;

struct Params {
    pairs: u32, used: u32, experts: u32, size: u32, tiles: u32, ids_offset: u32,
    ids_strides: vec4<u32>,
}

@group(0) @binding(0) var<storage, read_write> y: array<i32>;
@group(0) @binding(1) var<uniform> params: Params;

var<workgroup> own: array<u32, WG>;
var<workgroup> lower: array<u32, WG>;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let expert = group_index(group, groups);
    if expert >= params.experts {
        return;
    }
    // Lanes look at neighbouring stretches of the pairs, so that these keep their order.
    let stretch = (params.pairs + WG - 1u) / WG;
    let first = min(lane * stretch, params.pairs);
    let end = min(first + stretch, params.pairs);
    var counts = vec2<u32>();
    for (var pair = first; pair < end; pair++) {
        let id = expert_of(pair);
        counts += vec2<u32>(u32(id == expert), u32(id < expert));
    }
    own[lane] = counts.x;
    lower[lane] = counts.y;
    workgroupBarrier();
    var place = 0u;
    var count = 0u;
    var before = 0u;
    for (var i = 0u; i < WG; i++) {
        place += select(0u, own[i], i < lane);
        count += own[i];
        before += lower[i];
    }
    let tile = before / params.size + expert;
    for (var pair = first; pair < end; pair++) {
        if expert_of(pair) == expert {
            y[index_of(tile, place)] = i32(pair);
            place += 1u;
        }
    }
    // The rest of the last tile, and whole ones up to the next expert's first, hold nothing.
    let used = (count + params.size - 1u) / params.size;
    for (var i = count + lane; i < used * params.size; i += WG) {
        y[index_of(tile, i)] = -1;
    }
    let last = expert + 1u == params.experts;
    let next = select((before + count) / params.size + expert + 1u, params.tiles, last);
    for (var i = tile + lane; i < next; i += WG) {
        y[i * (params.size + 1u)] = select(-1, i32(expert), i < tile + used);
    }
}

fn index_of(tile: u32, place: u32) -> u32 {
    return (tile + place / params.size) * (params.size + 1u) + 1u + place % params.size;
}
