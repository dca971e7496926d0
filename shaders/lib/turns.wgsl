// Turns of a loop over the groups of a row of weights, BLOCK groups a turn. The importing file has
// `weights`, a file of dot/, and the field groups.

const BLOCK: u32 = 1u;
const GROUPS: u32 = 0u;

// Groups of a row, as a number that the compiler knows if there is a kernel for each length of rows.
fn row_groups() -> u32 {
    return select(params.groups, GROUPS, GROUPS > 0u);
}

// Place of a group among the weights_SPAN that share a head. A turn of as many begins with the first.
fn place(group: u32, i: u32) -> u32 {
    return select(group % weights_SPAN, i, BLOCK == weights_SPAN);
}
