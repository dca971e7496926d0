// Values of one byte, written one at a time to any place; other threads may write other bytes of
// the word at the same time.

@group(0) @binding(0) var<storage, read_write> buf: array<atomic<u32>>;

fn buf_put(i: u32, bits: vec2<u32>) {
    let shift = (i % 4u) * 8u;
    var known = atomicLoad(&buf[i / 4u]);
    loop {
        let word = (known & ~(0xffu << shift)) | (bits.x << shift);
        let tried = atomicCompareExchangeWeak(&buf[i / 4u], known, word);
        if tried.exchanged {
            break;
        }
        known = tried.old_value;
    }
}
