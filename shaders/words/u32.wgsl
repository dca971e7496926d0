// Sixteen bytes of weights, as four words.

alias Sixteen = vec4<u32>;
alias Eight = vec2<u32>;

fn sixteen_words(bytes: Sixteen) -> vec4<u32> {
    return bytes;
}

fn eight_words(bytes: Eight) -> vec2<u32> {
    return bytes;
}
