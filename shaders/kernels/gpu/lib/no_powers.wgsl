// Keys and values as they are.

fn power_of_keys() -> f32 {
    return 1.0;
}

fn power_of_values() -> f32 {
    return 1.0;
}
