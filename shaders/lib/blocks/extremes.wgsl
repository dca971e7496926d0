// Extremes of 32 values.

fn smallest(values: ptr<function, array<vec4<f32>, 8>>) -> f32 {
    var least = (*values)[0];
    for (var i = 1u; i < 8u; i++) {
        least = min(least, (*values)[i]);
    }
    return min(min(least.x, least.y), min(least.z, least.w));
}

fn largest(values: ptr<function, array<vec4<f32>, 8>>) -> f32 {
    var most = (*values)[0];
    for (var i = 1u; i < 8u; i++) {
        most = max(most, (*values)[i]);
    }
    return max(max(most.x, most.y), max(most.z, most.w));
}

// The value of largest magnitude, the first of equals.
fn farthest(values: ptr<function, array<vec4<f32>, 8>>) -> f32 {
    var found = (*values)[0].x;
    for (var i = 0u; i < 8u; i++) {
        for (var j = 0u; j < 4u; j++) {
            let value = (*values)[i][j];
            found = select(found, value, abs(value) > abs(found));
        }
    }
    return found;
}
