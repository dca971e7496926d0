"""Static costs of kernels: loops are weighted, and regressions are reported."""

import json
import os
import platform
import struct
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchmarks.gpu_costs import assembly, compare, internals, models, nir, nir_run, tools
from benchmarks.gpu_costs.__main__ import arguments, checked, lint_lines, table
from benchmarks.gpu_costs.collect import Row
from benchmarks.gpu_costs.lint import Lint, cycles, least_cycles, least_lines, lines
from benchmarks.gpu_costs.nir_ops import OPS, compute

ROOT = Path(__file__).parents[2]

# Threads of 64 stride over params[8 / 4] groups; each turn reads 16 bytes of binding 0 and runs an
# inner loop of three turns that leaves at its end.
PROGRAM = """\
shader: MESA_SHADER_COMPUTE
workgroup_size: 64, 1, 1
shared_size: 256
impl main {
    con block b0:         // preds:
    div 32      %1 = @load_vector_arg_amd (base=6, arg_upper_bound_u32_amd=63)
    con 32      %2 = @load_scalar_arg_amd (base=1, arg_upper_bound_u32_amd=0)
    con 32      %3 = load_const (0x00000010 = 16)
    con 32x4    %4 = @load_smem_amd (%2, %3 (0x10)) (align_mul=16, align_offset=0)
    con 32      %5 = load_const (0x00000000 = 0.000000)
    con 32x4    %6 = @load_smem_amd (%2, %5 (0x0)) (align_mul=16, align_offset=0)
    con 32x3    %7 = @load_ubo (%4, %5 (0x0)) (access=smem-amd, range=12)
    con 32      %8 = load_const (0x00000040 = 64)
    con 32      %9 = load_const (0x00000001)
    con 32     %10 = load_const (0x00000003)
                      // succs: b1
    div loop {
        div block b1:         // preds: b0 b7
        div 32     %11 = phi b0: %1, b7: %12
        div 1      %13 = uge %11, %7.z
                          // succs: b2 b3
        if %13 {
            div block b2:// preds: b1
            break
            // succs: b8
        } else {
            div block b3:  // preds: b1, succs: b4
        }
        div block b4:         // preds: b3
        con 32     %14 = load_const (0x00000004)
        div 32     %15 = ishl %11, %14 (0x4)
        div 32x4   %16 = @load_ssbo (%6, %15) (access=readonly, align_mul=16, align_offset=0)
                          // succs: b5
        con loop {
            con block b5:         // preds: b4 b6
            con 32     %17 = phi b4: %5 (0x0), b6: %18
            con 32     %18 = iadd %17, %9 (0x1)
            con 1      %19 = uge %18, %10 (0x3)
            if %19 {
                con block b9:// preds: b5
                break
                // succs: b7
            } else {
                con block b6:  // preds: b5, succs: b5
            }
        }
        div block b7:         // preds: b9
        div 32     %12 = iadd %11, %8 (0x40)
                          // succs: b1
    }
    con block b8:             // preds: b2
    @store_shared (%11, %15) (base=0, wrmask=x, align_mul=4, align_offset=0)
                      // succs: b10
    block b10:
}
"""
ASSEMBLY = """\
BB0:
	s_load_b128 s[12:15], s[2:3], 0x50     ; f4080301 f8000050
	s_nop 0                                ; bf800000
	(then repeated 2 times)
BB1:
	v_cmpx_le_u32_e32 s4, v1               ; 7d960204
BB2:
	s_cbranch_scc0 BB10                    ; bfa10192
BB4:
	v_mov_b32_e32 v3, 0
	v_dual_mov_b32 v1, 0 :: v_dual_mov_b32 v0, 0
BB5:
	v_add_f32_e32 v2, v2, v3
	s_cbranch_scc1 BB7
BB6:
	s_branch BB5
BB7:
	s_branch BB1
BB10:
	s_endpgm
"""


def setting(**other) -> nir_run.Setting:
    params = struct.pack("4I", 0, 0, 130, 0)
    return nir_run.Setting(params, 1, **{"groups": (1, 1, 1), "subgroup": 32, **other})


def test_loops_turn_as_often_as_parameters_and_lanes_say():
    program = nir.parse(PROGRAM)
    trips = nir_run.Run(program, setting()).run()
    assert [loop.depth for loop in program.loops] == [0, 1]
    assert program.threads == 64
    # 130 groups: threads 0 and 1 have three turns, so their wave has, and the other wave two.
    assert trips.entered.tolist() == [[4, 3], [9, 6]]
    assert trips.completed.tolist() == [[3, 2], [6, 4]]
    assert trips.known


def test_a_wave_of_all_threads_turns_as_often_as_its_busiest_thread():
    trips = nir_run.Run(nir.parse(PROGRAM), setting(subgroup=64)).run()
    assert trips.entered.tolist() == [[4], [9]]


def test_a_loop_that_data_ends_is_not_guessed():
    text = PROGRAM.replace("uge %11, %7.z", "uge %11, %16.x")
    assert not nir_run.Run(nir.parse(text), setting()).run().known


def test_assumed_contents_end_a_loop():
    program = nir.parse(PROGRAM.replace("uge %11, %7.z", "uge %11, %20").replace(
        "        div 1      %13",
        "        con 32     %20 = @load_ssbo (%6, %5 (0x0)) (access=readonly, align_mul=4)\n"
        "        div 1      %13",
    ))  # fmt: skip
    assumed = setting(subgroup=64, contents={0: lambda words: words + 65})
    assert nir_run.Run(program, assumed).run().entered.tolist() == [[3], [6]]


def test_addresses_are_those_of_every_turn():
    seen = []
    nir_run.Run(nir.parse(PROGRAM), setting(subgroup=64), seen.append).run()
    loads = [each for each in seen if each.op == "@load_ssbo"]
    assert [each.addresses[:2].tolist() for each in loads] == [[0, 16], [1024, 1040], [2048, 2064]]
    assert [each.active.sum() for each in loads] == [64, 64, 2]
    assert {(each.binding, each.nbytes) for each in loads} == {(0, 16)}
    (store,) = [each for each in seen if each.op == "@store_shared"]
    assert (store.binding, store.nbytes) == (None, 4)


def test_text_that_is_cut_is_an_error():
    with pytest.raises(ValueError, match="ends inside"):
        nir.parse(PROGRAM[: PROGRAM.index("div block b7")])
    with pytest.raises(ValueError, match="workgroup_size"):
        nir.parse("impl main {\n}\n")


@pytest.mark.parametrize(
    ("op", "operands", "expected"),
    [
        ("iadd", (0xFFFFFFFF, 2), 1),
        ("ilt", (0xFFFFFFFF, 0), True),
        ("ult", (0xFFFFFFFF, 0), False),
        ("ishr", (0x80000000, 4), 0xF8000000),
        ("ushr", (0x80000000, 36), 0x08000000),
        ("umul_high", (0x80000000, 6), 3),
        ("imax", (0xFFFFFFFF, 3), 3),
        ("ubfe", (0x00ABCD00, 8, 12), 0xBCD),
        ("extract_u8", (0x00AB0000, 2), 0xAB),
        ("bcsel", (True, 5, 6), 5),
        ("u2f32", (3,), 0x40400000),
        ("f2u32", (0xBF800000,), 0),
        ("bitnz", (4, 2), True),
        ("i2i64", (0xFFFFFFFE,), 0xFFFFFFFFFFFFFFFE),
    ],
)
def test_arithmetic_is_that_of_nir(op, operands, expected):
    types = {bool: np.bool_, int: np.uint32}
    found = compute(op, [np.array([x], types[type(x)]) for x in operands])
    assert found.tolist() == [expected]


def test_what_is_unknown_stays_so_but_where_it_does_not_count():
    zero, one = np.zeros(2, np.uint32), np.ones(2, np.uint32)
    assert compute("imul", [None, zero]).tolist() == [0, 0]
    assert compute("imul", [one, None]) is None
    assert compute("fsin_amd", [one]) is None
    assert "fsin_amd" not in OPS


def test_blocks_and_loops_of_an_assembly():
    blocks = assembly.blocks(ASSEMBLY)
    assert [len(block.instructions) for block in blocks] == [4, 1, 1, 2, 2, 1, 1, 1]
    loops = assembly.loops(blocks)
    assert [(loop.first, loop.last, loop.leaves) for loop in loops] == [(1, 6, 2), (4, 5, 4)]
    assert assembly.depths(loops) == [0, 1]


def test_instructions_are_weighted_by_the_trips_of_their_loops():
    program = nir.parse(PROGRAM)
    trips = nir_run.Run(program, setting(subgroup=64)).run()
    depths = [loop.depth for loop in program.loops]
    once, heads, outer, inner, again = 4 + 1, 2 * 4, 3 * (2 + 1), 9 * 2, 6 * 1
    assert assembly.executed(ASSEMBLY, trips, depths) == once + heads + outer + inner + again


def test_loops_that_do_not_match_are_not_guessed():
    trips = nir_run.Run(nir.parse(PROGRAM), setting()).run()
    assert assembly.executed(ASSEMBLY, trips, [0, 0]) is None
    assert assembly.executed("", trips, []) is None
    trips.known = False
    assert assembly.executed(ASSEMBLY, trips, [0, 1]) is None


INTEL = """\
Push constant ranges:

mov(8)          g92<1>UD        g0.1<0,1,0>UD                   { align1 WE_all 1Q };
(+f0.0) if(8)   JIP:  LABEL1          UIP:  LABEL0              { align1 1Q };
send(8)         g59UD           g22UD           nullUD          0x04146efd                0x00000000
                            dp data 1 MsgDesc: (DC A64 untyped surface read)  mlen 2 { align1 1Q };

LABEL0:
endif(8)        JIP:  LABEL4                                    { align1 1Q };

LABEL4:
cmp.ge.f0.0(8)  null<1>UD       g107<8,8,1>UD   g112.2<0,1,0>UD { align1 1Q I@2 };
(+f0.0) break(8) JIP:  LABEL3         UIP:  LABEL3              { align1 1Q };
sync nop(1)                     null<0,1,0>UB                   { align1 WE_all 1N I@1 };

LABEL19:
add(8)          g60<1>D         g92<0,1,0>D     g1<0,1,0>D      { align1 1Q };
while(8)        JIP:  LABEL19                                   { align1 1Q };
while(8)        JIP:  LABEL4                                    { align1 1Q };

LABEL3:
send(1)         nullUD          g127UD          nullUD          0x02000000                0x00000000
                            thread_spawner MsgDesc: mlen 1  { align1 WE_all 1N EOT };
"""


def test_instructions_of_intels_assembly_are_weighted_alike():
    program = nir.parse(PROGRAM)
    trips = nir_run.Run(program, setting(subgroup=64)).run()
    depths = [loop.depth for loop in program.loops]
    # Four before the loop, one behind it; four heads of two, three turns of sync and while, nine
    # of the loop inside, which leaves at its end.
    assert assembly.executed(INTEL, trips, depths) == 4 + 1 + 4 * 2 + 3 * (1 + 1) + 9 * 2


def with_text(text, **replaced):
    """`text`, with the right side of some definitions replaced, by the numbers of their values."""
    lines = text.splitlines()
    for name, new in replaced.items():
        (at,) = [i for i, line in enumerate(lines) if f"%{name[1:]} = " in line]
        lines[at] = lines[at][: lines[at].index("= ") + 2] + new
    return "\n".join(lines)


def test_intels_driver_tells_bindings_and_the_grid_in_its_own_way():
    text = with_text(
        PROGRAM,
        v1="@load_local_invocation_id",
        v4="@resource_intel (%2, %3 (0x10)) (desc_set=0, binding=1, resource_intel=pushable)",
    )
    assert nir_run.Run(nir.parse(text), setting()).run().entered.tolist() == [[4, 3], [9, 6]]
    pushed = with_text(text, v7="@load_push_constant (%5 (0x0)) (base=12, range=12)")
    many = setting(groups=(1, 1, 130))
    assert nir_run.Run(nir.parse(pushed), many).run().entered.tolist() == [[4, 3], [9, 6]]


def row(**other):
    return {
        "family": "navi31", "model": "8b", "format": "q4_0", "graph": "decode1", "op": "linear",
        "operands": "weights:q4_0[8×32]", "vgprs": 64, "spills": 0, "scratch": 0, "lds": 512,
        "latency": 1000, "inverse_throughput": 100, "code": 2000, "count": 1,
    } | other  # fmt: skip


def test_the_table_names_the_kernel_that_an_op_takes():
    none = dict.fromkeys(("threads", "wave", "waves", "instructions", "instructions_per_weight"))
    shown = row(kernel="matvec_q8(COLS=8u)", groups=(4, 1, 1), **none)
    head, line = table([shown]).splitlines()[2:]
    assert line.startswith("1  linear  matvec_q8  4×1×1")
    assert head.split()[:4] == ["n", "op", "kernel", "grid"]


def kernels(*rows):
    return compare.figures(rows)


def test_a_baseline_without_any_of_the_kernels_is_no_success(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "BASELINE", tmp_path / "b.json")
    compare.write(compare.BASELINE, "Mesa 25.0.7", [row()])
    moved = row(op="moved")
    assert checked([row(), moved], "Mesa 25.0.7") == 0
    assert "1 kernels are not in the baseline" in capsys.readouterr().out
    assert checked([moved], "Mesa 25.0.7") == 1
    assert "the baseline has none of these kernels" in capsys.readouterr().out
    assert checked([moved], "Mesa 26.0.1") == 0  # of another compiler nothing can be compared


def test_json_has_the_figures_that_are_compared():
    names = {field.name for field in fields(Row)}
    wanted = (
        "family model format graph op kernel count groups vgprs spills scratch lds waves latency "
        "inverse_throughput instructions_per_weight"
    )
    assert set(wanted.split()) <= names
    assert {*compare.KEY, *compare.LIMITS, *compare.NEVER} <= names


@pytest.mark.parametrize("name", ["spills", "scratch"])
def test_spills_and_scratch_are_told_of_any_kernel(name):
    (line,) = compare.worse([row(**{name: 16})], {})
    assert line == f"navi31 8b q4_0 decode1 linear: {name} is 16, needs 0"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("latency", 1050, 1051),
        ("inverse_throughput", 105, 106),
        ("code", 2200, 2201),
        ("vgprs", 64, 65),
        ("lds", 512, 516),
    ],
)
def test_figures_may_grow_so_far(name, good, bad):
    before = kernels(row())
    assert compare.worse([row(**{name: good})], before) == []
    (line,) = compare.worse([row(**{name: bad})], before)
    assert f"{name} {row()[name]} → {bad}" in line


def test_kernels_that_are_new_are_counted_not_judged():
    new = row(op="add", latency=10**6)
    assert compare.worse([new], kernels(row())) == []
    assert compare.unknown([new, row()], kernels(row())) == 1


def test_a_baseline_is_read_as_it_was_written(tmp_path):
    rows = [row(), row(format="q4_k_m", latency=1200), row(op="add", operands="")]
    compare.write(tmp_path / "b.json", "radv Mesa 25.0.7-2", rows)
    found = compare.read(tmp_path / "b.json")
    assert (found.mesa, found.kernels) == ("25.0", compare.figures(rows))
    assert max(figures["latency"] for figures in found.kernels.values()) == 1200


def test_the_committed_baseline_has_all_formats_on_both_families():
    found = compare.read(compare.BASELINE).kernels
    for family in ("navi31", "vega10"):
        operands = " ".join(key[3] for key in found if key[0] == family)
        for dtype in ("q4_0", "q4_k", "q6_k", "q8_0", "f16"):
            assert f"weights:{dtype}[" in operands


def addresses(step, lanes=32):
    return np.arange(lanes) * step


@pytest.mark.parametrize(
    ("where", "nbytes", "expected", "least"),
    [
        (addresses(16), 16, 4, 4),
        (addresses(128), 16, 32, 4),
        (addresses(4), 4, 1, 1),
        (addresses(0), 16, 1, 1),
        (addresses(4) + 120, 16, 3, 4),
    ],
)
def test_lines_that_lanes_touch(where, nbytes, expected, least):
    assert lines(where, nbytes) == expected
    assert least_lines(where, nbytes) == least


@pytest.mark.parametrize(
    ("where", "nbytes", "expected"),
    [
        (addresses(4), 4, 1),
        (addresses(128), 4, 32),
        (addresses(8), 4, 2),
        (addresses(0), 4, 1),
        (addresses(16), 16, 4),
        # Rows of nine vectors: neighbours lie in other banks, but not every eighth row.
        ((np.arange(32) % 8) * 9 * 16, 16, 4),
        ((np.arange(32) % 8) * 8 * 9 * 16, 16, 32),
    ],
)
def test_cycles_that_banks_take(where, nbytes, expected):
    assert cycles(where, nbytes) == expected
    assert least_cycles(where, nbytes) == nbytes // 4


def test_the_lint_shows_the_worst_access_first():
    found = []
    for step in (16, 128):
        lint = Lint({0: "weights"})
        wide = PROGRAM.replace(
            "load_const (0x00000004)", f"load_const ({hex(step.bit_length() - 1)})"
        )
        program = nir.parse(wide)
        trips = nir_run.Run(program, setting(subgroup=64)).run()
        told = lint.look(program, setting(subgroup=64), trips)
        found.append(row(op=f"by{step}", groups=(2, 1, 1), lint=told))
    load = found[1]["lint"][0]
    assert (load["memory"], load["took"], load["times"]) == ("weights", pytest.approx(26), 3)
    first, second, *_ = list(lint_lines(found))
    assert "that are not ideal" in first
    assert "by128: load_ssbo of 16 B a lane, weights: 26.0 lines of 128 B" in second


def test_a_model_without_weights_is_a_whole_model(tmp_path):
    path = models.sparse_gguf(tmp_path / "m.gguf", models.SIZES["tiny"], "q4_k_m")
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    assert tensors["blk.0.ffn_down.weight"].shape.tolist() == [512, 256]
    assert tensors["output.weight"].tensor_type.name == "Q6_K"
    sizes = models.SIZES["8b"]
    better = [w for w in models.weights(sizes, "q4_k_m") if w.dtype == "q6_k"]
    assert len(better) == 2 * 16 + 1
    layers = [int(w.name.split(".")[1]) for w in better if "ffn_down" in w.name]
    assert layers == [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    assert sum(w.nbytes for w in models.weights(sizes, "q4_0")) == pytest.approx(4.52e9, rel=0.01)


def test_rows_that_are_no_whole_blocks_take_another_format():
    dtypes = {w.name: w.dtype for w in models.weights(models.SIZES["0.5b"], "q4_k_m")}
    assert dtypes["blk.0.attn_q.weight"] == "q5_0"
    assert dtypes["output.weight"] == "q8_0"
    assert dtypes["blk.0.ffn_down.weight"] == "q6_k"


def command(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_costs", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"MESA": "/nowhere"}, "skipped: no radeon driver of Mesa (25 or newer) in /nowhere\n"),
        ({"PATH": "/nowhere", "CC": ""}, "skipped: no C compiler (cc, gcc, clang)\n"),
    ],
)
def test_without_its_tools_it_says_so_and_that_is_no_failure(environment, told, request):
    if "MESA" not in environment and not has_driver():
        pytest.skip("needs Mesa, to come as far as the compiler")
    done = command("--model", "tiny", **environment)
    assert (done.returncode, done.stdout) == (0, told)


def has_driver() -> bool:
    try:
        tools.mesa()
    except tools.Missing:
        return False
    return True


def test_mesa_may_be_unpacked_in_a_folder(tmp_path, monkeypatch):
    manifest = tmp_path / "usr/share/vulkan/icd.d/radeon_icd.x86_64.json"
    manifest.parent.mkdir(parents=True)
    icd = {"library_path": "/usr/lib/libvulkan_radeon.so", "api_version": "1.4.305"}
    manifest.write_text(json.dumps({"ICD": icd}), "utf-8")
    monkeypatch.setenv("MESA", str(tmp_path))
    with pytest.raises(tools.Missing, match="no libvulkan_radeon"):
        tools.mesa()
    library = tmp_path / "usr/lib/x86_64-linux-gnu/libvulkan_radeon.so"
    library.parent.mkdir(parents=True)
    library.touch()
    (manifest.parent / "radeon_icd.another.json").write_text("{}", "utf-8")
    manifest.rename(manifest.with_name(f"radeon_icd.{platform.machine()}.json"))
    assert tools.mesa() == tools.Mesa(str(library), library.parent, "1.4.305")


@pytest.mark.parametrize("family", tools.INTEL)
def test_a_kernel_driver_is_made_up_for_intels(family, tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "mesa", lambda name: tools.Mesa(f"libvulkan_{name}.so", None, "1.4"))
    try:
        tools.compiler()
    except tools.Missing as missing:
        pytest.skip(str(missing))
    found = tools.environment(tmp_path, family)
    assert Path(found["LD_PRELOAD"].split()[0]).is_file()
    assert Path(found["GPU_COSTS_CARD"]).stat().st_size == tools.CARD_NBYTES
    icd = json.loads(Path(found["VK_DRIVER_FILES"]).read_text("utf-8"))["ICD"]
    assert icd["library_path"] == "libvulkan_intel.so"
    assert "RADV_FORCE_FAMILY" not in found


def test_graphs_by_name():
    one, prompt, late = (
        internals.shape_of(name, 4096) for name in ("decode4", "prefill64", "prefill64at8192")
    )
    assert (one.tokens, one.sequences, one.longest) == (4, 4, 4096)
    assert (prompt.tokens, prompt.sequences, prompt.longest) == (64, 1, 256)
    assert (late.tokens, late.sequences, late.longest) == (64, 1, 8192)
    for name in ("prefill", "prefill64at64", "prefill64at", "prefill0at512", "prefill64at128"):
        with pytest.raises(ValueError, match="needs decodeN, prefillN or prefillNatM"):
            internals.shape_of(name, 4096)


def test_a_baseline_of_less_than_all_is_refused(capsys):
    with pytest.raises(SystemExit):
        arguments(["--write-baseline", "--formats", "q4_0"])
    assert "leave the options that choose out" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("family", ["navi31", "vega10", "dg2", "bmg"])
def test_kernels_of_a_tiny_model_from_end_to_end(tmp_path, family):
    out = tmp_path / "rows.json"
    words = ["--model", "tiny", "--formats", "q4_0,f16", "--family", family]
    words += ["--graph", "decode1,prefill16", "--lint", "--json", str(out)]
    done = command(*words)
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("skipped: "):
        pytest.skip(done.stdout)
    rows = json.loads(out.read_text("utf-8"))
    assert {(r["format"], r["graph"]) for r in rows} == {
        (f, g) for f in ("q4_0", "f16") for g in ("decode1", "prefill16")
    }
    products = [r for r in rows if r["instructions_per_weight"]]
    # Intel's compiler unrolls loops of the products, and what it makes of them has no figure then.
    if family not in tools.INTEL:
        assert {r["graph"] for r in products} == {"decode1", "prefill16"}
    for each in products:
        assert each["vgprs"] > 0
        assert each["count"] > 0
        # Less than one instruction a weight nobody manages, more than 10,000 is a wrong weight.
        assert 1 < each["instructions_per_weight"] < 10_000
        assert each["lint"]
    assert table(rows) in done.stdout


@pytest.mark.slow
def test_products_are_no_worse_than_the_baseline():
    words = ["--op", "linear", "--formats", "q4_0,q4_k_m,q8_0", "--family", "navi31", "--check"]
    done = command(*words, "--graph", "decode1,prefill64")
    assert done.returncode == 0, done.stdout + done.stderr
