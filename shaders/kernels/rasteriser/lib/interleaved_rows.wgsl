// Which rows of a weight a lane of a rasteriser takes: ROWS rows, INTERLEAVE apart. Those of INTERLEAVE
// consecutive work groups lie one behind the other in memory. These groups run on one core, so its lanes
// read on where they were, and the hardware prefetcher engages, which short rows alone end before.

const INTERLEAVE: u32 = 1u;

// First of the rows of a lane in a work group; the others lie INTERLEAVE apart.
fn interleaved_row(group: u32, lane: u32) -> u32 {
    return (group / INTERLEAVE * WG + lane) * (ROWS * INTERLEAVE) + group % INTERLEAVE;
}
