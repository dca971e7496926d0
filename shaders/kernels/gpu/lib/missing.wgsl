// Scores of positions that a row does not see.

// The running maximum starts above the score of missing positions, so that their weight is 0.
const HALF_LOWEST: f32 = -1.7014117e38;
const MISSING: f32 = -2.4e38;
// Scores with a bias are no lower: rows whose biases are the lowest numbers of f32 see all their positions alike.
const LEAST_SCORE: f32 = -1.65e38;
