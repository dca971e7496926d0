// Expert that a token chose: pair `t · used + u` is about `ids[t, u]`. Ids below zero become large numbers.
// The importing file has the fields used, ids_offset and ids_strides.

@group(0) @binding(0) var<storage, read> ids: array<i32>;

fn expert_of(pair: u32) -> u32 {
    let place = vec2<u32>(pair / params.used, pair % params.used) * params.ids_strides.zw;
    return u32(ids[params.ids_offset + place.x + place.y]);
}
