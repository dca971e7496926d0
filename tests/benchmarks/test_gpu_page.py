"""The page of static figures: what is read of llama.cpp's kernels, and what falls short."""

import pytest

from benchmarks.gpu_costs import page, peer

ASSEMBLY = """\
BB0:
	v_pk_fma_f16 v1, v2, v3, v1
BB1:
	v_dot4_i32_iu8 v1, v2, v3, v1 neg_lo:[1,1,0]
	s_waitcnt lgkmcnt(0)
	v_dual_fmac_f32 v1, v2, v3 :: v_dual_mul_f32 v4, v5, v6
	s_cbranch_scc0 BB3
BB2:
	s_branch BB1
BB3:
	v_fma_f32 v1, v2, v3, v4
	s_cbranch_scc1 BB3
BB4:
	s_endpgm
"""


@pytest.mark.parametrize(
    ("instruction", "products"),
    [
        ("v_fma_f32 v1, v2, v3, v4", 1),
        ("v_mac_f32_e32 v1, v2, v3", 1),
        ("v_mad_mix_f32 v1, v2, v3, v4", 1),
        ("v_mad_u32_u24 v1, v2, v3, v4", 0),
        ("v_pk_fma_f16 v1, v2, v3, v4", 2),
        ("v_dot4_i32_iu8 v1, v2, v3, v4", 4),
        ("v_dual_fmac_f32 v1, v2, v3 :: v_dual_fmac_f32 v4, v5, v6", 2),
        ("v_wmma_i32_16x16x16_iu8 v[1:8], v[9:12], v[13:16], v[1:8]", 128),
        ("s_waitcnt vmcnt(0)", 0),
    ],
)
def test_multiply_adds_of_an_instruction(instruction, products):
    assert peer.products_of(instruction) == products


def test_the_loop_that_multiplies_most_counts():
    loop = peer.loop_of(ASSEMBLY)
    assert (loop.instructions, loop.products) == (5, 5)
    assert loop.a_product == 1
    assert peer.loop_of("BB0:\n\tv_fma_f32 v1, v2, v3, v4\n\ts_endpgm\n") is None


@pytest.mark.parametrize(
    ("name", "type", "taken"),
    [
        ("mul_mat_vec_q4_0_q8_1_f32", "q4_0", True),
        ("mul_mat_vec_q4_k_f32_f32", "q4_0", False),
        ("matmul_quant_f32_f16acc_aligned_0", "q6_k", True),
        ("matmul_quant_f32_f16acc_aligned_0", "f16", False),
        ("matmul_f16_f32_f16acc_aligned_0", "f16", True),
        ("flash_attn_f32_f16_aligned", "f16", False),
    ],
)
def test_kernels_of_a_type_are_known_by_their_names(name, type, taken):
    assert peer._multiplies(name, type) == taken


def row(graph, weight, ipw, **other):
    known = {"family": "vega10", "format": "q8_0", "graph": graph, "op": "linear", "count": 31}
    operands = f"weights:{weight} x:u32[5×1×128×4]"
    found = {"instructions_per_weight": ipw, "operands": operands, "spills": 0, "scratch": 0}
    return {**known, **found, **other}


def test_what_falls_short_of_an_aim_is_told_once_with_both_numbers():
    rows = [
        row("decode1", "q8_0[6144×4096]", 2.5),
        row("decode1", "q8_0[4096×4096]", 2.0),
        row("decode1", "q8_0[128256×4096]", 9.0, count=1),  # the head
        row("prefill512", "q8_0[4096×4096]", 512 / 1.2),
        row("prefill512", "q8_0[6144×4096]", 512 / 1.3),
        row("decode8", "q8_0[4096×4096]", 40.0, spills=3),
    ]
    assert list(page.falls_short(rows)) == [
        "q8_0 decode8 linear spills 3 registers",
        "one column of q8_0[6144×4096]: 2.50, aim 2.0",
        "512 columns of q8_0[4096×4096]: 1.20, aim 1.3",
    ]


def test_tables_have_the_range_of_a_layer_beside_the_other_program():
    rows = [row("decode2", "q8_0[6144×4096]", ipw) for ipw in (3.0, 4.0)]
    peers = {("vega10", "q8_0", False): {2: 4.7}}
    lines = list(page.table(rows, peers, ["decode2"], ["q8_0"], turned=False))
    assert lines[-1] == "| Q8_0 | 1.50 to 2.00 (4.70) |"
    assert list(page.table(rows, {}, ["decode2"], ["q8_0"], turned=True))[-1] == (
        "| Q8_0 | 0.50 to 0.67 |"
    )
