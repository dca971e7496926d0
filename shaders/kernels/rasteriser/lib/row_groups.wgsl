// Groups of a row of weights. The importing file has the field groups.

const GROUPS: u32 = 0u;

// As a number that the compiler knows if there is a kernel for each length of rows.
fn row_groups() -> u32 {
    return select(params.groups, GROUPS, GROUPS > 0u);
}
