// The k largest of the keys that the threads of a work group hold, of equal ones the lower id first.
//
// The k-th largest of the threads' maxima is a bound that at least k keys reach, and few more:
// these go to workgroup memory. Ranks, how many come before each, put them in order: a barrier each
// instead of one for every step of a sort. Should more reach the bound than fit (equal values, or
// an adversarial order), the exact bound is found bit by bit. The importing file declares `WG` and
// has `params.k`.

const ITEMS: u32 = 1u;           // keys of a thread
const SUBSETS: u32 = 1u;         // of which it shows the maximum; k or more of all threads
const PLACES: u32 = 1024u;
const NO_LIMIT: u32 = 0xffffffffu;
const MAXIMA: u32 = WG * SUBSETS;

struct Items { keys: array<u32, ITEMS>, ids: array<u32, ITEMS> }

var<workgroup> collected: array<vec2<u32>, PLACES>;
var<workgroup> maxima: array<u32, MAXIMA>;
var<workgroup> counted: atomic<u32>;
var<workgroup> shared_number: u32;

// Orders as values do, NaN above all; ±0 are equal. An empty place has 0.
fn key_of_bits(bits: u32) -> u32 {
    let ordered = select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
    return select(ordered, 0xffffffffu, (bits & 0x7fffffffu) > 0x7f800000u);
}

// Whether a comes before b, of (key, id).
fn comes_first(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x > b.x || (a.x == b.x && a.y < b.y);
}

// The k-th largest of the maxima of subsets.
fn bound_of_maxima(items: ptr<function, Items>, lane: u32) -> u32 {
    var own: array<u32, SUBSETS>;
    // @unroll
    for (var i = 0u; i < ITEMS; i++) {
        own[i % SUBSETS] = max(own[i % SUBSETS], (*items).keys[i]);
    }
    // @unroll
    for (var s = 0u; s < SUBSETS; s++) {
        maxima[s * WG + lane] = own[s];
    }
    workgroupBarrier();
    var ranks: array<u32, SUBSETS>;
    for (var first = 0u; first < MAXIMA; first += 4u) {
        // @unroll
        for (var i = 0u; i < 4u; i++) {
            let other_i = vec2<u32>(maxima[first + i], first + i);
            // @unroll
            for (var s = 0u; s < SUBSETS; s++) {
                ranks[s] += u32(comes_first(other_i, vec2<u32>(own[s], s * WG + lane)));
            }
        }
    }
    // @unroll
    for (var s = 0u; s < SUBSETS; s++) {
        if ranks[s] == params.k - 1u {
            shared_number = own[s];
        }
    }
    return workgroupUniformLoad(&shared_number);
}

// How many items of all threads come before one.
fn count_before(items: ptr<function, Items>, last: vec2<u32>, lane: u32) -> u32 {
    if lane == 0u {
        atomicStore(&counted, 0u);
    }
    workgroupBarrier();
    var own = 0u;
    // @unroll
    for (var i = 0u; i < ITEMS; i++) {
        own += u32(comes_first(vec2<u32>((*items).keys[i], (*items).ids[i]), last));
    }
    atomicAdd(&counted, own);
    workgroupBarrier();
    if lane == 0u {
        shared_number = atomicLoad(&counted);
    }
    return workgroupUniformLoad(&shared_number);
}

// The largest (bound, limit) that no more than k items come before.
fn exact_bound(items: ptr<function, Items>, lane: u32) -> vec2<u32> {
    var bound = 0u;
    for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {
        // With limit 0 keys above the trial count alone.
        if count_before(items, vec2<u32>((bound | bit) - 1u, 0u), lane) >= params.k {
            bound |= bit;
        }
    }
    var limit = 0u;
    for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {
        if count_before(items, vec2<u32>(bound, limit | bit), lane) <= params.k {
            limit |= bit;
        }
    }
    return vec2<u32>(bound, limit);
}

// Put what comes before `last` into workgroup memory, as far as it fits; return how much there is.
fn collect(items: ptr<function, Items>, last: vec2<u32>, lane: u32) -> u32 {
    if lane == 0u {
        atomicStore(&counted, 0u);
    }
    workgroupBarrier();
    // @unroll
    for (var i = 0u; i < ITEMS; i++) {
        let item_i = vec2<u32>((*items).keys[i], (*items).ids[i]);
        if comes_first(item_i, last) {
            let place_i = atomicAdd(&counted, 1u);
            if place_i < PLACES {
                collected[place_i] = item_i;
            }
        }
    }
    workgroupBarrier();
    if lane == 0u {
        shared_number = atomicLoad(&counted);
    }
    return workgroupUniformLoad(&shared_number);
}

// Collect the largest, k of them and perhaps some more; return how many.
fn collect_largest(items: ptr<function, Items>, lane: u32) -> u32 {
    // Key 0 is an empty place: a bound of 1 keeps those out where there are fewer than k keys.
    let bound = max(bound_of_maxima(items, lane), 1u);
    var last = vec2<u32>(bound, NO_LIMIT);
    var count = PLACES + 1u;
    // Twice at most: the exact bound is of k keys.
    while count > PLACES {
        count = collect(items, last, lane);
        if count > PLACES {
            last = exact_bound(items, lane);
        }
    }
    return count;
}

// How many of those collected come before the i-th.
fn rank_of(i: u32, count: u32) -> u32 {
    let own = collected[i];
    var rank = 0u;
    for (var j = 0u; j < count; j++) {
        rank += u32(comes_first(collected[j], own));
    }
    return rank;
}
