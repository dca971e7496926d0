// Sixteen bytes of weights, loaded as two words of 64 bits: a rasteriser loads word by word.

alias Sixteen = vec2<u64>;
alias Eight = u64;

fn sixteen_words(bytes: Sixteen) -> vec4<u32> {
    return vec4<u32>(eight_words(bytes.x), eight_words(bytes.y));
}

fn eight_words(bytes: Eight) -> vec2<u32> {
    return vec2<u32>(u32(bytes), u32(bytes >> 32u));
}
