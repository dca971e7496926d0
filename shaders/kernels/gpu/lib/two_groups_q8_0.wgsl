// A lane takes two groups of Q8_0 side by side in an iteration, the first of them even: both scales are
// one word, of which each group knows its half, and addresses and branches are made once. The importing file
// has formats/int8/q8_0 as `weights`; rows begin at whole iterations, which are what is counted.

const GROUPS_AT_ONCE: u32 = 2u;
const STEP: u32 = 2u;  // groups that lie side by side; others are those that LANES lanes take later

struct buf_Row { quants: u32, scales: u32 }

fn buf_row(rows: u32) -> buf_Row {
    return buf_Row(rows * (params.groups * 2u), rows * select(params.groups / STEP, STRIDE, ONCE));
}

fn buf_words(row: buf_Row, i: u32, t: u32) -> weights_Words {
    let later = t / STEP * LANES;
    let quants = row.quants + 4u * i;
    let ahead = 4u * later + t % STEP * 2u;
    return weights_Words(
        weights_quants[quants + ahead], weights_quants[quants + (ahead + 1u)], weights_scales[(row.scales + i) + later],
    );
}

// Any group of the same parity: where a scale lies in its word depends on that alone.
fn buf_group(i: u32, t: u32) -> u32 {
    return t;
}

fn buf_column(first: u32, i: u32, t: u32, lane: u32) -> x_Column {
    return x_column_ahead(first + STEP * i, t / STEP * LANES * STEP + t % STEP, lane);
}
