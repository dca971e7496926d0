// Matrices of an array of vec4<f16> in workgroup memory, from `at` on, as Dawn loads them.

// Rows of the tile become rows of the matrix.
fn buf_rows(at: u32, stride: u32) -> MatrixRows {
    return subgroupMatrixLoad<MatrixRows, row_major>(&buf, at, stride);
}

// Rows of the tile become columns of the matrix.
fn buf_columns(at: u32, stride: u32) -> MatrixColumns {
    return subgroupMatrixLoad<MatrixColumns, col_major>(&buf, at, stride);
}
