// Division of integers rounded down, as Python has it; by zero it gives 0 and leaves 0. The smallest i32
// by -1 is itself, as in NumPy.

const SIGNED: bool = true;

struct Division { quotient: vec4<u32>, rest: vec4<u32> }

fn signed_division(a: vec4<i32>, b: vec4<i32>) -> Division {
    let zero = vec4<i32>(0);
    // Neither zero nor -1 divides safely.
    let odd = (b == zero) | (b == vec4<i32>(-1));
    let divisor = select(b, vec4<i32>(1), odd);
    let quotient = a / divisor;
    let rest = a - quotient * divisor;
    let down = (rest != zero) & ((rest < zero) != (divisor < zero));
    let floored = select(quotient, quotient - vec4<i32>(1), down);
    let negated = select(zero - a, zero, b == zero);
    return Division(
        bitcast<vec4<u32>>(select(floored, negated, odd)),
        bitcast<vec4<u32>>(select(select(rest, rest + divisor, down), zero, odd)),
    );
}

fn whole_division(a: vec4<u32>, b: vec4<u32>) -> Division {
    if SIGNED {
        return signed_division(bitcast<vec4<i32>>(a), bitcast<vec4<i32>>(b));
    }
    let none = b == vec4<u32>(0u);
    let divisor = select(b, vec4<u32>(1u), none);
    let quotient = a / divisor;
    let rest = a - quotient * divisor;
    return Division(select(quotient, vec4<u32>(0u), none), select(rest, vec4<u32>(0u), none));
}
