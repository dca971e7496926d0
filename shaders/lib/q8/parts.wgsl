// Columns of x that lie side by side and are the parts of one: their products add up to a column of y.

const PARTS: u32 = 1u;
