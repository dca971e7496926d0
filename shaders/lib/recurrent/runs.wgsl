// Runs of tokens of one sequence each: which rows they have, which slot their state begins from, and
// which takes it after the last token; -1 for none. The importing file declares `runs_offset`,
// `sequences`, `tokens` and `slots` in its `Params`.

@group(0) @binding(0) var<storage, read> runs: array<i32>;

struct Run { first: u32, end: u32, source: i32, target_slot: i32, last: bool }

fn run_at(index: u32) -> Run {
    let at = params.runs_offset + 4u * index;
    let first = u32(clamp(runs[at], 0, i32(params.tokens)));
    let count = u32(max(runs[at + 1u], 0));
    let end = first + min(count, params.tokens - first);
    let source = known_slot(runs[at + 2u]);
    let target_slot = known_slot(runs[at + 3u]);
    return Run(first, end, source, target_slot, index + 1u == params.sequences);
}

fn known_slot(slot: i32) -> i32 {
    return select(-1, slot, u32(slot) < params.slots);
}
