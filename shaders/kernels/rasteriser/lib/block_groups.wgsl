// Loops over the groups of a row of weights, BLOCK groups an iteration. The importing file has
// `weights`, a file of dot/.
// @import kernels/rasteriser/lib/row_groups

const BLOCK: u32 = 1u;

// Place of a group among the weights_SPAN that share a head. An iteration of as many begins with the first.
fn place(group: u32, i: u32) -> u32 {
    return select(group % weights_SPAN, i, BLOCK == weights_SPAN);
}
