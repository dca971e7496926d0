// Where rows of floats lie in a texture, see `wgpu_backend/kernels/rasteriser/layouts/float_texture.py`: tiles of
// TILE_ROWS rows, as the layout says, of which it has the first texels side by side, then the second ones.
// A part of weights is TEXELS of a row.

const TILE_ROWS: u32 = 1u;
const TEXELS: u32 = 1u;
const PART_STEP: u32 = TILE_ROWS * TEXELS;

fn weight_start(row: u32, row_length: u32, parts: u32) -> u32 {
    let row_there = params.weights_group / row_length + row;
    let texels = row_length * parts * TEXELS;
    return row_there / TILE_ROWS * (texels * TILE_ROWS) + row_there % TILE_ROWS;
}
