// Matrix units as Dawn has them: a subgroup holds MAT_M x MAT_K weights, MAT_K x MAT_N columns and
// MAT_M x MAT_N sums. Arrays in workgroup memory are of vec4<f16>: places and strides count vectors.

const MAT_M: u32 = 16u;
const MAT_N: u32 = 16u;
const MAT_K: u32 = 16u;

alias MatrixRows = subgroup_matrix_left<f16, MAT_K, MAT_M>;
alias MatrixColumns = subgroup_matrix_right<f16, MAT_N, MAT_K>;
alias MatrixSums = subgroup_matrix_result<f32, MAT_N, MAT_M>;

fn multiply_add(rows: MatrixRows, columns: MatrixColumns, sums: MatrixSums) -> MatrixSums {
    return subgroupMatrixMultiplyAccumulate(rows, columns, sums);
}
