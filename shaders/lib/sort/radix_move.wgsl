// Where the keys of a chunk go in a pass of a radix sort, and in which form.
// @import lib/sort/radix
// @import formats/load/i32 as ends
// @import lib/index/grid

const OUTPUT: u32 = 1u;
const WORDS: u32 = 2u;
const IDS: u32 = 3u;
// Bits sorted by after this pass.
const DONE: u32 = 8u;

struct Params {
    rows: u32, cols: u32, chunks: u32, chunk: u32, x_offset: u32, ends_offset: u32,
}

@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;

// Chunk of the row, its row, and the columns it covers.
struct Chunk { index: u32, row: u32, first: u32, end: u32 }

fn chunk_of(i: u32) -> Chunk {
    let index = i % params.chunks;
    let first = index * params.chunk;
    return Chunk(index, i / params.chunks, first, min(first + params.chunk, params.cols));
}

// First place in `y` for the keys of a chunk that have that digit. `ends` are running sums of the
// counts: digit by digit, and chunk by chunk in each.
fn first_place(chunk: Chunk, digit: u32) -> u32 {
    let counter = digit * params.chunks + chunk.index;
    let start = chunk.row * params.cols;
    if counter == 0u {
        return start;
    }
    let table = params.ends_offset + chunk.row * BINS * params.chunks;
    return start + u32(ends_load(table + counter - 1u));
}

fn input_index(chunk: Chunk, column: u32) -> u32 {
    let offset = params.x_offset / select(1u, 2u, INPUT == PAIRS);
    return offset + chunk.row * params.cols + column;
}

fn id_at(at: u32, column: u32, key: u32) -> u32 {
    if INPUT == VALUES {
        return column;
    }
    if INPUT == PAIRS {
        return u32(x_load(2u * at + 1u));
    }
    return key & ((1u << SHIFT) - 1u);
}

fn put(place: u32, key: u32, id: u32) {
    if OUTPUT == PAIRS {
        y[2u * place] = key;
        y[2u * place + 1u] = id;
    } else if OUTPUT == WORDS {
        y[place] = (key & ~((1u << (DONE % 32u)) - 1u)) | id;
    } else {
        y[place] = id;
    }
}
