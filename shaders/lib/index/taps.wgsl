// Where the taps of a kernel meet `x`, and where their weights are. The importing file's `Params`
// have `kernel`, `dilation`, `before` and `spread`.

const SPREAD: bool = false;   // values of `x` have zeros between them
const FLIPPED: bool = false;  // the last tap comes first
const NOWHERE: u32 = 0xffffffffu;

// Value that a tap meets, of the pixel whose first tap, before padding, is at `place`. One outside
// of `x` comes out as a large number: what lies before the first value wraps around.
fn met(place: vec4<u32>, tap: vec4<u32>) -> vec4<u32> {
    let at = place + tap * params.dilation - params.before;
    if !SPREAD {
        return at;
    }
    return select(vec4<u32>(NOWHERE), at / params.spread, at % params.spread == vec4<u32>(0u));
}

fn weights_of(tap: vec4<u32>) -> vec4<u32> {
    return select(tap, params.kernel - 1u - tap, FLIPPED);
}
