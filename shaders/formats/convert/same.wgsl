// A value as WGSL converts it: from integers, and from any number to floats.

fn buf_of(value: vec4<Value>) -> vec4<Out> {
    return vec4<Out>(value);
}
