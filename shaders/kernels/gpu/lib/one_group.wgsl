// A lane takes one group of 32 weights of each row, or a share of it, in an iteration. The importing file
// has `weights` and `x`.

const GROUPS_AT_ONCE: u32 = 1u;
const STEP: u32 = 1u;

alias buf_Row = weights_Row;

fn buf_row(rows: u32) -> buf_Row {
    return weights_row(rows * params.groups * UNITS);
}

fn buf_words(row: buf_Row, i: u32, t: u32) -> weights_Words {
    return weights_words_in(row, i);
}

fn buf_group(i: u32, t: u32) -> u32 {
    return i;
}

fn buf_column(first: u32, i: u32, t: u32, lane: u32) -> x_Column {
    return x_column(first + i, lane);
}
