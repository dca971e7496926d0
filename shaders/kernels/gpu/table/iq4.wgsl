// A kernel whose quants are those of IQ4.
// @import lib/blocks/nibble_table
// @import lib/blocks/sixteen

fn buf_fill(lane: u32) {
    fill_nibble_table(IQ4_NUMBERS, lane);
}
