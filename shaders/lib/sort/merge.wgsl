// Where an output of a stable merge of two sorted runs comes from. The importing file brings
// `key_at(i)`.

// How many of the first `count` values of the merge are from the run that begins at `a`: the two runs
// follow each other, `a` to `b` to `end` ("Merge path", Green, McColl & Bader 2012, algorithm 2).
fn merged_of_first(count: u32, a: u32, b: u32, end: u32) -> u32 {
    var low = count - min(count, end - b);
    var high = min(count, b - a);
    while low < high {
        let middle = (low + high) / 2u;
        if key_at(a + middle) <= key_at(b + count - 1u - middle) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}
