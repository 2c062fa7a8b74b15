import pytest

from tops_bench.aot import hlo, overlap
from tops_bench.aot.bundles import DumpError

TEXT = """HloModule m, is_scheduled=true

%body (p: (s32[], f32[8])) -> (s32[], f32[8]) {
  %p = (s32[], f32[8]) parameter(0)
  ROOT %fusion.2 = f32[8]{0:T(128)} fusion(%p), kind=kLoop, calls=%f, backend_config={"window_config":{"estimated_cycles":"40"}}
}

%condition (p.1: (s32[], f32[8])) -> pred[] {
  %c = s32[] constant(6)
}

ENTRY %main (x: bf16[8,128]) -> f32[8] {
  %x = bf16[8,128]{1,0:T(8,128)(2,1)} parameter(0)
  %copy-start = (bf16[8,128]{1,0:T(8,128)(2,1)S(1)}, bf16[8,128]{1,0}, u32[]{:S(2)}) copy-start(%x)
  %k.1 = f32[8]{0} custom-call(%x), custom_call_target="tpu_custom_call"
  %w = (s32[], f32[8]) while(%t), condition=%condition, body=%body
  ROOT %fusion = f32[8]{0} fusion(%w), kind=kLoop, calls=%f, backend_config={"window_config":{"estimated_cycles":"9223372036854775807"}}
}
"""


def test_what_runs_in_a_loop_runs_as_often_as_its_condition_allows():
    times = {one.name: one.times for one in hlo.instructions(TEXT)}
    assert times["fusion.2"] == 6
    assert times["fusion"] == 1


def test_a_known_trip_count_is_believed():
    text = TEXT.replace("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"3"}}')
    assert {one.name: one.times for one in hlo.instructions(text)}["fusion.2"] == 3


def test_estimates_are_read_and_absurd_ones_dropped():
    cycles = {one.name: one.estimated_cycles for one in hlo.instructions(TEXT)}
    assert (cycles["fusion.2"], cycles["fusion"]) == (40, None)


def test_a_pallas_kernel_is_told_from_other_calls():
    assert [one.name for one in hlo.instructions(TEXT) if one.is_kernel] == ["k.1"]


def test_a_copy_moves_its_operands_bytes():
    copy = next(one for one in hlo.instructions(TEXT) if one.opcode == "copy-start")
    assert copy.bytes_moved == 8 * 128 * 2


def test_a_copy_that_stays_in_hbm_is_read_and_written():
    text = TEXT.replace("S(1)}, bf16", "}, bf16")
    assert next(one for one in hlo.instructions(text) if one.opcode == "copy-start").bytes_moved == 2 * 8 * 128 * 2


def test_what_follows_a_kernel_whose_metadata_run_over_lines_is_read():
    metadata = 'frontend_attributes={kernel_metadata={\n"xprof_metadata":"{}"\n}}, metadata={op_name="k"}'
    text = TEXT.replace('custom_call_target="tpu_custom_call"', f'custom_call_target="tpu_custom_call", {metadata}')
    assert [one.name for one in hlo.instructions(text)] == [one.name for one in hlo.instructions(TEXT)]


def test_the_end_of_a_copy_names_its_start():
    text = TEXT.replace("  %w =", "  %copy-done = bf16[8,128]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)\n  %w =")
    assert next(one for one in hlo.instructions(text) if one.opcode == "copy-done").started == "copy-start"


def test_programs_that_differ_in_names_alone_have_one_signature():
    copies = "".join(
        f"  %copy.{at} = bf16[8,128]{{0,1:T(8,128)}} copy(%{of}), metadata={{op_name={at}}}\n"
        for at, of in ((1, "x"), (2, "x"), (3, "k.1"))
    )
    signatures = {one.name: one.signature for one in hlo.instructions(TEXT.replace("  %w =", copies + "  %w ="))}
    assert signatures["copy.1"] == signatures["copy.2"]
    assert signatures["copy.1"] != signatures["copy.3"]  # its operand is of another type


def test_a_copy_costs_what_nothing_beside_it_hides():
    clock = overlap.Clock()
    clock.start("hidden", 3.0)
    clock.run(5.0, of_hbm=0.0)
    clock.wait("hidden")
    clock.start("half hidden", 4.0)
    clock.run(3.0, of_hbm=1.0)
    clock.wait("half hidden")
    clock.start("alone", 2.0)
    clock.start("behind it", 1.0)
    clock.wait("alone")
    clock.wait("behind it")
    assert clock.waits == {"hidden": 0.0, "half hidden": 2.0, "alone": 2.0, "behind it": 1.0}


def test_a_copy_whose_start_was_not_seen_is_not_waited_for():
    clock = overlap.Clock()
    clock.wait("of the last trip")
    assert clock.waits == {"of the last trip": 0.0}


def test_text_without_an_entry_is_a_broken_dump():
    with pytest.raises(DumpError, match="ENTRY"):
        hlo.instructions("HloModule m")
