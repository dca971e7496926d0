// Values of two bytes, written one at a time to any place; another thread may write the other half
// of the word at the same time.

@group(0) @binding(0) var<storage, read_write> buf: array<atomic<u32>>;

fn buf_put(i: u32, bits: vec2<u32>) {
    let shift = (i % 2u) * 16u;
    var known = atomicLoad(&buf[i / 2u]);
    loop {
        let word = (known & ~(0xffffu << shift)) | (bits.x << shift);
        let tried = atomicCompareExchangeWeak(&buf[i / 2u], known, word);
        if tried.exchanged {
            break;
        }
        known = tried.old_value;
    }
}
