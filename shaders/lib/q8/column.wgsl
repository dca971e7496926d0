// 32 values of a column as integers: quant · scale. The sums are those of quants, of all and of the first
// half, times the scale. The squares are summed of the values before they were rounded, and before a
// norm's weight.
// @import lib/q8/packed_sums as sums

struct Column {
    low: Factors,
    high: Factors,
    scale: f32,
    sum: f32,
    first: f32,
    squares: f32,
}
