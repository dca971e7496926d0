// How lanes of a small work group see each other's values: through workgroup memory. A value is put
// on a board under a number, `boards_ready` waits for all, and then any lane's can be had.

var<workgroup> board: array<f32, BOARDS * WG>;
var<workgroup> board4: array<vec4<f32>, ROWS * WG>;

fn lanes_width() -> u32 {
    return WG;
}

fn lane_of(lane: u32) -> u32 {
    return lane;
}

fn put(number: u32, lane: u32, value: f32) {
    board[number * WG + lane] = value;
}

fn put4(number: u32, lane: u32, value: vec4<f32>) {
    board4[number * WG + lane] = value;
}

fn boards_ready() {
    workgroupBarrier();
}

// Value of lane `other`; the caller's own is given for the sake of devices that exchange registers.
fn had(number: u32, other: u32, own: f32) -> f32 {
    return board[number * WG + other];
}

fn had4(number: u32, other: u32, own: vec4<f32>) -> vec4<f32> {
    return board4[number * WG + other];
}

fn had_u(number: u32, other: u32, own: u32) -> u32 {
    return bitcast<u32>(board[number * WG + other]);
}
