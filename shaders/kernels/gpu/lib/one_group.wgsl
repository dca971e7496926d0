// A lane takes one group of 32 weights of each row, or a share of it, in an iteration. The importing file
// has `weights`.

const GROUPS_AT_ONCE: u32 = 1u;

alias buf_Row = weights_Row;

fn buf_row(row: u32) -> buf_Row {
    return weights_row(row);
}

fn buf_words(row: buf_Row, i: u32, t: u32) -> weights_Words {
    return weights_words_in(row, i);
}

fn buf_group(i: u32, t: u32) -> u32 {
    return i;
}
