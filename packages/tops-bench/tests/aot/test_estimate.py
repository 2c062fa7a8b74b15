import dataclasses

import pytest

from tops_bench.aot import bundles, estimate, hotspot, timeline
from tops_bench.aot.bundles import Utilization
from tops_bench.aot.dumps import Allocations, Dump
from tops_bench.aot.follow import follow
from tops_bench.aot.targets import TARGETS, Chip, target


def test_the_clock_follows_from_the_rate_and_the_mxus(chip):
    assert chip.clock == pytest.approx(1e9)


def test_from_the_sixth_generation_an_mxu_takes_two_rows_a_cycle():
    six = Chip("six", 6, 1, 2, 256, 1, 1, 1e12, 9.2e14, 1.84e15)
    assert six.clock == pytest.approx(1.755e9, rel=1e-3)
    assert six.matmul_cycles(16) == 8


def test_a_product_of_shorter_operands_keeps_the_mxu_as_long_for_more_rows(chip):
    assert [chip.matmul_cycles(bits) for bits in (32, 16, 8)] == [8, 16, 16]


def test_the_estimate_is_the_longer_of_schedule_and_traffic_and_a_step_of_the_other(recorded, chip):
    figures = estimate.kernel(recorded("tiny"), TARGETS["v5e"], chip)
    compute, memory = figures.cycles / 1e9, figures.dma_bytes / 1e12
    assert figures.dma_bytes == 32 * 512 * 2 + 2 * 512 * 128 * 2 + 32 * 128 * 2
    assert figures.seconds == pytest.approx(max(compute, memory) + min(compute, memory) / 8)


def test_the_mxu_is_never_less_occupied_than_its_operands_need(recorded, chip):
    """2 * 4 steps of one [16, 128] @ [128, 128]: one op of 16 rows each, 16 cycles."""
    assert estimate.kernel(recorded("tiny"), TARGETS["v5e"], chip).mxu_cycles == 8 * 16


def test_products_crowded_into_one_bundle_take_as_long_as_their_mxu_does(chip):
    ops = "  ;;  ".join(f"%{at} = vmatmul.bf16.gmra.mxu0 %v1_v1" for at in range(4))
    listing = bundles.parse(f"     0   :  {{ {ops} }}")
    dump = Dump("k", listing, Utilization(("MXU",), (4,), ((4,),)), Allocations(0, 0))
    figures = estimate.kernel(dump, TARGETS["v5e"], chip)
    assert (figures.bundles_run, figures.cycles, figures.binds) == (1, 4 * 16, "MXU")


def test_vmem_counts_both_buffers_of_a_window_and_the_scratch(recorded, chip):
    figures = estimate.kernel(recorded("tiny"), TARGETS["v5e"], chip)
    windows = 2 * (16 * 128 * 2 + 128 * 128 * 2 + 16 * 128 * 2)
    assert figures.vmem_bytes >= windows + 16 * 128 * 4
    assert figures.vmem_bytes < windows + 16 * 128 * 4 + (64 << 10)


def test_two_readings_of_one_dump_are_identical(recorded, chip):
    assert estimate.kernel(recorded("tiny"), TARGETS["v5e"], chip) == estimate.kernel(
        recorded("tiny"), TARGETS["v5e"], chip
    )


def test_the_hottest_loop_is_shared_out_among_source_lines(recorded):
    dump = recorded("tiny")
    trace = follow(dump.listing, 4)
    spot = hotspot.hotspot(dump, trace)
    assert spot.trips == 10
    assert sum(share for _, share in spot.lines) == pytest.approx(spot.bundles_run)
    assert any(line.startswith("kernel.py:") for line, _ in spot.lines)
    assert 0 < spot.idle < spot.bundles_run


def test_chains_are_longest_first_and_share_no_op(recorded):
    dump = recorded("tiny")
    found = hotspot.hotspot(dump, follow(dump.listing, 4)).chains
    assert 1 < len(found) <= 10
    assert [chain.ops for chain in found] == sorted((chain.ops for chain in found), reverse=True)


def test_an_op_of_a_longer_chain_is_not_in_a_shorter_one():
    text = "%v1_v1 = vadd %v0_v0 ;; %v2_v2 = vadd %v1_v1 ;; %v3_v3 = vadd %v2_v2 ;; %v9_v9 = vmul %v2_v2 ;; %v5_v5 = vmul %v4_v4 ;; %v6_v6 = vmul %v5_v5"
    found = hotspot.chains(bundles.parse(f"     0   :  {{ {text} }}").bundles)
    assert [chain.ops for chain in found] == [3, 2]


def test_a_timeline_has_a_row_a_slot_and_stands_alone(recorded):
    dump = recorded("tiny")
    spot = hotspot.hotspot(dump, follow(dump.listing, 4))
    page = timeline.page("a < b", spot, dump.utilization.slots)
    assert all(f">{slot} (" in page for slot in dump.utilization.slots)
    assert "a &lt; b" in page
    assert "<script" not in page


def test_an_unknown_target_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="v5e"):
        target("v9")


def test_bytes_are_of_all_cores_and_the_time_is_the_slowest_ones(chip):
    text = (
        "     0   :  { %s1_s1 = sld [smem:[#allocation0]] /* core id */ }\n"
        "   0x1   :  { %10 = dma.hbm_to_vmem /*hbm=*/%s8_s8, /*size_in_granules=*/64, /*vmem=*/%s7_s7 }\n"
    )
    dump = Dump("k", bundles.parse(text), Utilization(("SALU",), (2,), ((1,), (1,))), Allocations(0, 0))
    two = dataclasses.replace(chip, cores=2)
    assert [estimate.kernel(dump, TARGETS["v5p"], one).dma_bytes for one in (chip, two)] == [64 * 32, 2 * 64 * 32]
    assert estimate.kernel(dump, TARGETS["v5p"], two).bundles_run == 2
