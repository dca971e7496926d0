// Largest or smallest value of an output and where it is: NaN before all others, the first of equals.
// @import lib/sort/key_at
// @import lib/index/strided

const SMALLEST: bool = false;

struct Params {
    outputs: u32,
    length: u32,
    x_offset: u32,
    step: u32,
    kept_shape: vec4<u32>,
    kept_strides: vec4<u32>,
}

@group(0) @binding(0) var<uniform> params: Params;

struct Best { key: u32, place: u32 }

fn rank_of(key: u32) -> u32 {
    return select(key, ~key, SMALLEST && (INTEGER || key != 0xffffffffu));
}

// Best of values `first`, `first + step` … of an output; what none comes after where there are none.
fn best_of(output: u32, first: u32, step: u32) -> Best {
    let start = params.x_offset + strided(output, params.kept_shape, params.kept_strides);
    var best = Best(0u, 0xffffffffu);
    for (var i = first; i < params.length; i += step) {
        best = better(best, Best(rank_of(key_at(start + i * params.step)), i));
    }
    return best;
}

fn better(a: Best, b: Best) -> Best {
    let second = b.key > a.key || (b.key == a.key && b.place < a.place);
    if second {
        return b;
    }
    return a;
}
