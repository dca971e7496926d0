// A norm that the rows of x still lack: products are linear, so its factor waits for their end. The
// importing file has the fields groups and eps.

const NORMED: bool = false;

// Factor of a row from the sum of squares of its groups.
fn norm_factor(squares: f32) -> f32 {
    if NORMED {
        return 1.0 / sqrt(squares / f32(params.groups * 32u) + params.eps);
    }
    return 1.0;
}
