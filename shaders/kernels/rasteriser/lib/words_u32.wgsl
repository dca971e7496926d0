// Bytes of weights, 16, 8 or 32 at a time, as words.

alias Sixteen = vec4<u32>;
alias Eight = vec2<u32>;
alias ThirtyTwo = array<vec4<u32>, 2>;

fn sixteen_words(bytes: Sixteen) -> vec4<u32> {
    return bytes;
}

fn eight_words(bytes: Eight) -> vec2<u32> {
    return bytes;
}

fn thirty_two_words(bytes: ThirtyTwo) -> array<vec4<u32>, 2> {
    return bytes;
}
