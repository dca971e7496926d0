// Factors of a thread's states, vector 0 of those that a token brings; the first four hold for all
// where a head has one decay.

const SHARED_DECAY: bool = false;

fn decay_at(staged_at: u32, mine: u32, i: u32) -> vec4<f32> {
    if SHARED_DECAY {
        return staged[staged_at];
    }
    return staged[mine + i];
}
