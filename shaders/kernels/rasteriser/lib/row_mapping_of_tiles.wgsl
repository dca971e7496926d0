// Rows of a lane where those of all lanes lie side by side.

fn buf_row(group: u32, lane: u32, r: u32) -> u32 {
    return (group * ROWS + r) * WG + lane;
}
