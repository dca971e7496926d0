// Eight values of a head, an octet, that turn by the angles of a table as in rope.wgsl: four pairs,
// which are (i, i + pairs), or neighbours when INTERLEAVED. Octets beyond the pairs stay.
// @import formats/vec4/f32 as angles

const INTERLEAVED: bool = false;

// Where in a head the two vectors of an octet lie.
fn places_of(octet: u32, pairs: u32) -> vec2<u32> {
    if octet * 4u >= pairs || INTERLEAVED {
        return vec2<u32>(octet * 8u, octet * 8u + 4u);
    }
    return vec2<u32>(octet * 4u, pairs + octet * 4u);
}

// `first_angle` is where the table has the angles of a token.
fn turned(octet: u32, pairs: u32, first_angle: u32, a: vec4<f32>, b: vec4<f32>) -> array<vec4<f32>, 2> {
    if octet * 4u >= pairs {
        return array<vec4<f32>, 2>(a, b);
    }
    let at = first_angle / 4u + octet * 2u;
    let early = angles_load4(at);
    let late = angles_load4(at + 1u);
    let cosine = vec4<f32>(early.xz, late.xz);
    let sine = vec4<f32>(early.yw, late.yw);
    if INTERLEAVED {
        let first = vec4<f32>(a.xz, b.xz);
        let second = vec4<f32>(a.yw, b.yw);
        let real = first * cosine - second * sine;
        let imaginary = first * sine + second * cosine;
        return array<vec4<f32>, 2>(
            vec4<f32>(real.x, imaginary.x, real.y, imaginary.y),
            vec4<f32>(real.z, imaginary.z, real.w, imaginary.w),
        );
    }
    return array<vec4<f32>, 2>(a * cosine - b * sine, a * sine + b * cosine);
}
