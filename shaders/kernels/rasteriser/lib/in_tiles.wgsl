// Where rows of weights lie in a texture, see `wgpu_backend/kernels/rasteriser/layouts/tiled.py`: tiles of
// TILE_ROWS rows, as the layout says, of which it has the first texels side by side, then the second ones.
// A part of weights is TEXELS of a row.

const TILE_ROWS: u32 = 1u;
const TEXELS: u32 = 1u;
const PART_STEP: u32 = TILE_ROWS * TEXELS;

fn weight_start(row: u32, turns: u32, parts: u32) -> u32 {
    let row_there = params.weights_group / turns + row;
    let texels = turns * parts * TEXELS;
    return row_there / TILE_ROWS * (texels * TILE_ROWS) + row_there % TILE_ROWS;
}
