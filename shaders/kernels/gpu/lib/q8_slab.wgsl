// Slabs of a product in eight bits, SLAB groups of 32 values of k: how threads bring those of rows and
// columns into registers, and put them into workgroup memory. The importing file has `weights`, `x`, Params,
// ZERO and what lib/tile_place has.
//
// The numbers of a group of weights: its scale, that times -ZERO, its minimum, then of formats with a scale
// for each half the minimum of the second half, and its scale.

const W_PLANE: u32 = 2u * TILE_M + 4u;
// Vectors of the columns of a slab, as they lie in memory: three a group, its quants and its numbers.
const X_VECTORS: u32 = 3u * TILE_N * SLAB;

// First halves of groups, then second ones.
var<workgroup> tile_w: array<vec4<u32>, SLAB * W_PLANE>;
var<workgroup> tile_x: array<vec4<u32>, X_VECTORS>;
var<workgroup> scales: array<f32, SLAB * SCALES * TILE_M>;

// Words of weights stay packed until their slab is put: these are fewer registers.
struct Slab { w: array<weights_Words, W_ITEMS>, x: array<vec4<u32>, X_ITEMS> }
// Where the groups of an item begin.
struct Starts { w: array<u32, W_ITEMS>, x: array<u32, X_ITEMS> }

fn starts_of(first_row: u32, first_col: u32, lane: u32) -> Starts {
    var starts: Starts;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        let i_j = lane + j * WG;
        starts.w[j] = params.weights_group + tile_row(first_row, i_j / SLAB) * params.groups + i_j % SLAB;
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        // Surplus threads repeat the last vector, surplus columns the last one, and are not stored.
        let i_j = min(lane + j * WG, X_VECTORS - 1u);
        let group_j = i_j / 3u % SLAB;
        let col_j = i_j / (3u * SLAB);
        let first_j = params.x_offset / 12u + min(first_col + col_j, params.n - 1u) * params.groups;
        starts.x[j] = x_vector(first_j + group_j, i_j % 3u);
    }
    return starts;
}

// The items of a thread in the slab that begins with group `g` of each row.
fn brought(starts: Starts, g: u32, lane: u32) -> Slab {
    var slab: Slab;
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        slab.w[j] = weights_words(starts.w[j] + g);
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        slab.x[j] = x_at(starts.x[j], g);
    }
    return slab;
}

fn put_slab(
    slab: Slab, starts: Starts, g: u32, counts: f32, lane: u32, squares: ptr<function, array<f32, X_ITEMS>>,
) {
    // Where a group stands in a super-block: all items of a thread stand alike.
    let place = weights_place(lane % SLAB + g);
    // @unroll
    for (var j = 0u; j < W_ITEMS; j++) {
        if TILE_M * SLAB % WG == 0u || lane + j * WG < TILE_M * SLAB {
            put_weights(weights_group(slab.w[j], starts.w[j] + g, place), lane + j * WG);
        }
    }
    // @unroll
    for (var j = 0u; j < X_ITEMS; j++) {
        if X_VECTORS % WG == 0u || lane + j * WG < X_VECTORS {
            tile_x[lane + j * WG] = slab.x[j];
        }
        if NORMED && (lane + j * WG) % 3u == 2u {
            (*squares)[j] = fma(bitcast<f32>(slab.x[j].w), counts, (*squares)[j]);
        }
    }
}

fn put_weights(w: Group, i: u32) {
    let row = i / SLAB;
    let at = i % SLAB * W_PLANE + row;
    tile_w[at] = centred(w.low);
    tile_w[at + TILE_M] = centred(w.high);
    let place = i % SLAB * SCALES * TILE_M + plane_place(row);
    scales[place] = w.scale.x;
    scales[place + TILE_M] = -ZERO * w.scale.x;
    if MINIMA {
        scales[place + 2u % SCALES * TILE_M] = -w.minimum.x;
    }
    if weights_TWO_SCALES {
        scales[place + TILE_M] = -ZERO * (w.scale.x + w.scale.y);
        scales[place + (SCALES - 1u) * TILE_M] = w.scale.y;
        if MINIMA {
            scales[place + 3u % SCALES * TILE_M] = -w.minimum.y;
        }
    }
}

// Quants less OFFSET, each in its byte: 128 more carry nothing into the next one, and flip the top bit.
fn centred(quants: vec4<u32>) -> vec4<u32> {
    if OFFSET == 0u {
        return quants;
    }
    return (quants + vec4<u32>((128u - OFFSET) * 0x01010101u)) ^ vec4<u32>(0x80808080u);
}
