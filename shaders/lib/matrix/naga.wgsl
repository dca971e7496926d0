// Matrix units as naga has them, see dawn: matrices are square, and of 8 or 16 rows.

const MAT_M: u32 = 16u;
const MAT_N: u32 = 16u;
const MAT_K: u32 = 16u;

alias MatrixRows = coop_mat16x16<f16, A>;
alias MatrixColumns = coop_mat16x16<f16, B>;
alias MatrixSums = coop_mat16x16<f32, C>;

fn multiply_add(rows: MatrixRows, columns: MatrixColumns, sums: MatrixSums) -> MatrixSums {
    return coopMultiplyAdd(rows, columns, sums);
}
