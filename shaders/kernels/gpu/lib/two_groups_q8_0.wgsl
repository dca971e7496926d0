// A lane takes two groups of Q8_0 side by side in an iteration, the first of them even: both scales are
// one word, of which each group knows its half, and addresses and branches are made once. The importing file
// has formats/int8/q8_0 as `weights`; rows begin at whole iterations, which are what is counted.

const GROUPS_AT_ONCE: u32 = 2u;

alias buf_Row = u32;

fn buf_row(row: u32) -> buf_Row {
    return row;
}

fn buf_words(row: buf_Row, i: u32, t: u32) -> weights_Words {
    let quants = 4u * (row + i) + 2u * t;
    return weights_Words(weights_quants[quants], weights_quants[quants + 1u], weights_scales[row + i]);
}

// A group as odd as the one in question, which is all that its scale hangs on.
fn buf_group(i: u32, t: u32) -> u32 {
    return t;
}
