// A kernel whose quants are those of IQ4.
// @import lib/nibble_table
// @import lib/sixteen

fn buf_fill(lane: u32) {
    fill_nibble_table(IQ4_NUMBERS, lane);
}
