// y[t, :] = scores of a token's experts, negative infinity for those of groups that it does not use.
// A work group a token, a thread a group.
// @import lib/index/group_row
// @import formats/load/f32 as x
// @import lib/experts/groups

struct Params { rows: u32, experts: u32, x_offset: u32 }

@group(0) @binding(0) var<storage, read_write> y: array<f32>;

var<workgroup> groups_keys: array<u32, MOST_GROUPS>;

fn group_row(token: u32, lane: u32) {
    let start = params.x_offset + token * params.experts;
    let each = params.experts / GROUPS;
    for (var g = lane; g < GROUPS; g += WG) {
        var best = vec2<u32>();
        for (var e = g * each; e < (g + 1u) * each; e++) {
            best = with_key(best, key_of_f32(x_load(start + e)));
        }
        groups_keys[g] = key_of_group(best, each);
    }
    workgroupBarrier();
    for (var e = lane; e < params.experts; e += WG) {
        let used = place_of_group(e / each) < GROUPS_USED;
        y[token * params.experts + e] = select(bitcast<f32>(f32_of_key(SHUT)), x_load(start + e), used);
    }
}

fn place_of_group(group: u32) -> u32 {
    let own = groups_keys[group];
    var place = 0u;
    for (var g = 0u; g < GROUPS; g++) {
        let other = groups_keys[g];
        place += u32(other > own || (other == own && g < group));
    }
    return place;
}
