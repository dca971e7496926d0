// Matrices of an array of vec4<f16> in workgroup memory, as naga loads them; see dawn_tile.

fn buf_rows(at: u32, stride: u32) -> MatrixRows {
    return coopLoadT<MatrixRows>(&buf[at], stride);
}

fn buf_columns(at: u32, stride: u32) -> MatrixColumns {
    return coopLoad<MatrixColumns>(&buf[at], stride);
}
