// Where rows of weights lie that follow one another in a buffer, counted in parts.

const PART_STEP: u32 = 1u;

fn weight_start(row: u32, row_length: u32, parts: u32) -> u32 {
    return (params.weights_group + row * row_length) * parts;
}
