// Which rows of a weight a lane of a rasteriser takes. A lane goes along ROWS strips of STRIP rows each,
// which lie one behind the other in memory, a row of each in a work group. Work groups that follow one
// another run on one core, so its lanes read on where they were, and the core, which foresees that,
// has fetched it. Short rows alone end before it does.

const STRIP: u32 = 1u;

// First of the rows of a lane in a work group; the others lie STRIP apart.
fn strip_row(group: u32, lane: u32) -> u32 {
    return (group / STRIP * WG + lane) * (ROWS * STRIP) + group % STRIP;
}
