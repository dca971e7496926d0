// Matrices of sums into an array of f32 in workgroup memory, as naga stores them; see dawn_sums.

fn buf_put_rows(at: u32, sums: MatrixSums, stride: u32) {
    coopStoreT(sums, &buf[at], stride);
}

fn buf_put_columns(at: u32, sums: MatrixSums, stride: u32) {
    coopStore(sums, &buf[at], stride);
}

// Matrices as `put_rows` stored them.
fn buf_sums(at: u32, stride: u32) -> MatrixSums {
    return coopLoadT<MatrixSums>(&buf[at], stride);
}
