// A slab of products in pairs of two rows, in workgroup memory, and the place of a thread, which sums eight
// rows by eight columns. The importing file has `rows`. 32 threads side by side take WARP_ROWS eights of
// rows by 32 / WARP_ROWS of columns, so that they read few different words at a time.

const WG: u32 = 128u;
const TILE_M: u32 = 128u;
const TILE_N: u32 = 64u;
const WARP_ROWS: u32 = 8u;
const SLAB: u32 = 1u;           // groups of 32 values of k
const W_ITEMS: u32 = 1u;        // halves of a group of two rows that a thread brings
const X_ITEMS: u32 = 2u;        // eights of columns of one k
const HALVES: u32 = 2u * SLAB;
const PLANE_W: u32 = TILE_M / 2u;                       // one k of all rows, in pairs
const HALF_W: u32 = 16u * PLANE_W + 16u / SLAB;         // halves in different banks
const PLANE_X: u32 = TILE_N / 4u;                       // one k of all columns, in vectors
const SCALES: u32 = 1u;         // of a row in a slab: one for each group, or for each of its halves
const SUMMED: u32 = 32u;        // values of k whose products are summed in f16
const WRITTEN_OUT: u32 = 32u;   // of these without a loop; slow compilers take few

var<workgroup> tile_w: array<vec2<f16>, HALVES * HALF_W>;
var<workgroup> tile_x: array<vec4<f16>, SLAB * 32u * PLANE_X>;
var<workgroup> scales: array<f32, SCALES * TILE_M>;

// Which eight rows and eight columns of a tile are a thread's.
fn place_of(lane: u32) -> vec2<u32> {
    let warp = lane / 32u;
    let warps = TILE_M / 8u / WARP_ROWS;
    return vec2<u32>(
        lane % WARP_ROWS + warp % warps * WARP_ROWS,
        lane % 32u / WARP_ROWS + warp / warps * (32u / WARP_ROWS),
    );
}

// Puts half a group of two rows, with the group's scales.
fn put_rows(rows: rows_Half, half: u32, pair: u32) {
    if rows_BY_HALVES {
        scales[half * TILE_M + 2u * pair] = rows.scale.x;
        scales[half * TILE_M + 2u * pair + 1u] = rows.scale.y;
    } else {
        // Both threads of a group know both.
        scales[half / 2u * TILE_M + 2u * pair + half % 2u] = select(rows.scale.x, rows.scale.y, half % 2u == 1u);
    }
    // @unroll
    for (var q = 0u; q < 4u; q++) {
        let four_q = rows_four(rows, q);
        let at_q = half * HALF_W + 4u * q * PLANE_W + pair;
        tile_w[at_q] = vec2<f16>(four_q.first.x, four_q.second.x);
        tile_w[at_q + PLANE_W] = vec2<f16>(four_q.first.y, four_q.second.y);
        tile_w[at_q + 2u * PLANE_W] = vec2<f16>(four_q.first.z, four_q.second.z);
        tile_w[at_q + 3u * PLANE_W] = vec2<f16>(four_q.first.w, four_q.second.w);
    }
}

fn multiply(own: vec2<u32>, sums: ptr<function, array<f32, 64>>) {
    // @unroll
    for (var p = 0u; p < SCALES; p++) {
        var parts = array<vec2<f16>, 32>();
        for (var k = 0u; k < SUMMED; k += WRITTEN_OUT) {
            let at = p * SUMMED + k;
            let w_at = at / 16u * HALF_W + at % 16u * PLANE_W + own.x * 4u;
            let x_at = at * PLANE_X + own.y * 2u;
            // @unroll
            for (var i = 0u; i < WRITTEN_OUT; i++) {
                add_products(w_at + i / 16u * HALF_W + i % 16u * PLANE_W, x_at + i * PLANE_X, &parts);
            }
        }
        add_parts(p, own.x, &parts, sums);
    }
}

// Adds the products of one k, of which rows and columns lie at these places.
fn add_products(w_at: u32, x_at: u32, parts: ptr<function, array<vec2<f16>, 32>>) {
    let low = tile_x[x_at];
    let high = tile_x[x_at + 1u];
    let x_k = array<vec2<f16>, 8>(low.xx, low.yy, low.zz, low.ww, high.xx, high.yy, high.zz, high.ww);
    let w_k = array<vec2<f16>, 4>(tile_w[w_at], tile_w[w_at + 1u], tile_w[w_at + 2u], tile_w[w_at + 3u]);
    // @unroll
    for (var r = 0u; r < 4u; r++) {
        // @unroll
        for (var c = 0u; c < 8u; c++) {
            (*parts)[r * 8u + c] = fma(w_k[r], x_k[c], (*parts)[r * 8u + c]);
        }
    }
}

// Adds sums in f16 to those in f32, times the scales of rows.
fn add_parts(
    plane: u32, own: u32, parts: ptr<function, array<vec2<f16>, 32>>, sums: ptr<function, array<f32, 64>>,
) {
    // @unroll
    for (var r = 0u; r < 4u; r++) {
        let first_r = scales[plane * TILE_M + own * 8u + 2u * r];
        let second_r = scales[plane * TILE_M + own * 8u + 2u * r + 1u];
        // @unroll
        for (var c = 0u; c < 8u; c++) {
            let part_c = (*parts)[r * 8u + c];
            (*sums)[16u * r + c] = fma(f32(part_c.x), first_r, (*sums)[16u * r + c]);
            (*sums)[16u * r + 8u + c] = fma(f32(part_c.y), second_r, (*sums)[16u * r + 8u + c]);
        }
    }
}
