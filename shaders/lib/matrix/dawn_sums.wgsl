// Matrices of sums into an array of f32 in workgroup memory, from `at` on, as Dawn stores them.

fn buf_put_rows(at: u32, sums: MatrixSums, stride: u32) {
    subgroupMatrixStore<row_major>(&buf, at, sums, stride);
}

fn buf_put_columns(at: u32, sums: MatrixSums, stride: u32) {
    subgroupMatrixStore<col_major>(&buf, at, sums, stride);
}

// Matrices as `put_rows` stored them.
fn buf_sums(at: u32, stride: u32) -> MatrixSums {
    return subgroupMatrixLoad<MatrixSums, row_major>(&buf, at, stride);
}
