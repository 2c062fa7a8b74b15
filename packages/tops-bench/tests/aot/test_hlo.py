import pytest

from tops_bench.aot import hlo
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


def test_text_without_an_entry_is_a_broken_dump():
    with pytest.raises(DumpError, match="ENTRY"):
        hlo.instructions("HloModule m")
