// Bytes of weights, 16, 8 or 32 at a time, as words of 64 bits: a rasteriser loads word by word.

alias Sixteen = vec2<u64>;
alias Eight = u64;
alias ThirtyTwo = vec4<u64>;

fn sixteen_words(bytes: Sixteen) -> vec4<u32> {
    return vec4<u32>(eight_words(bytes.x), eight_words(bytes.y));
}

fn eight_words(bytes: Eight) -> vec2<u32> {
    return vec2<u32>(u32(bytes), u32(bytes >> 32u));
}

fn thirty_two_words(bytes: ThirtyTwo) -> array<vec4<u32>, 2> {
    return array<vec4<u32>, 2>(sixteen_words(bytes.xy), sixteen_words(bytes.zw));
}
