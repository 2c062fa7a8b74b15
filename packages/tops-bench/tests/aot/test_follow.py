import pytest

from tops_bench.aot import bundles, follow, scalar
from tops_bench.aot.bundles import DumpError

LOOP = """
     0   :  { %s1_s1 = smov 0 }
   0x1 LB: > { %s3_s1 = sphi %s1_s1, %s2_s1  ;;  %p1_p1 = scmp.eq.s32.totalorder %s3_s1, 0 } /* Start region 1 */
   0x2   : > { %9 = sbr.rel (%p1_p1) target = $region2 }
   0x3   : > { %10 = sfence }
   0x4 PF: > { %s2_s1 = sadd.s32 1, %s3_s1 } /* Start/End empty region 2 */
   0x5   : > { %p2_p2 = scmp.ge.s32.totalorder %s2_s1, 5 /* loop exit test */ }
   0x6   : > { %11 = sbr.rel (!%p2_p2) target = $region1 }
   0x7   :  { %12 = sfence }
"""


def test_a_loop_runs_as_often_as_its_exit_test_says():
    trace = follow.follow(bundles.parse(LOOP), 0)
    assert [(loop.first, loop.last, loop.trips, loop.known) for loop in trace.loops] == [(1, 6, 5, True)]
    assert trace.exact


def test_a_region_counts_only_when_its_condition_holds():
    assert follow.follow(bundles.parse(LOOP), 0).counts == (1, 5, 5, 4, 5, 5, 5, 1)


def test_delay_slots_run_after_a_taken_branch():
    counts = follow.follow(bundles.parse(LOOP), 1).counts
    assert counts[3] == 5  # behind the branch over it
    assert counts[7] == 5  # behind the loop's


# A loop of tpu7x: what the next trip starts from is copied behind its branch, after an idle bundle.
COPIED_LATE = """
     0   :  { %s5_s1 = smov 0 }
   0x1 LB: > { %s3_s1 = sphi %s5_s1, %s4_s1  ;;  %s2_s2 = sadd.s32 1, %s3_s1 } /* Start region 1 */
   0x2   : > { %p2_p2 = scmp.ge.s32.totalorder %s2_s2, 5 /* loop exit test */ }
   0x3   : > { %11 = sbr.rel (!%p2_p2) target = $region1 }
   0x4   :  {}
   0x5   : > { %s4_s1 = smov %s2_s2 } /* End region 1 */
   0x6   :  { %12 = sfence }
"""


def test_where_idle_cycles_are_packed_copies_behind_a_loops_branch_run_with_each_trip():
    trace = follow.follow(bundles.parse(COPIED_LATE), 4, packs_idle=True)
    assert [(loop.last, loop.trips) for loop in trace.loops] == [(5, 5)]
    assert trace.counts == (1, 5, 5, 5, 5, 5, 1)


def test_where_idle_cycles_are_packed_an_empty_bundle_fills_the_slots_behind_a_branch_over_a_region():
    text = LOOP.replace("%10 = sfence", "").replace("{  }", "{}")
    text = text.replace("0x4 PF: > {", "0x4 : > { %13 = sfence }\n   0x5 PF: > {").replace("   0x5   :", "   0x6   :")
    text = text.replace("0x6   : > { %11", "0x7   : > { %11").replace("   0x7   :  {", "   0x8   :  {")
    assert follow.follow(bundles.parse(text), 4, packs_idle=True).counts[3:5] == (5, 4)


@pytest.mark.parametrize(("kind", "popped"), [("kDivAndRem", [3, 2]), ("kRem", [2, 3]), ("kDiv", [3, 3])])
def test_a_division_gives_the_results_it_is_marked_with_and_no_others(kind, popped):
    """Of 17 / 5; what is popped then is the quotient of 19 / 6."""
    text = f"""
     0   :  {{ %1 = sdivrem.u32 17, 5 /* {kind} */ }}
   0x1   :  {{ %2 = sdivrem.u32 19, 6 /* kDivAndRem */ }}
   0x2   :  {{ %s1_s1 = spop.drf %1 }}
   0x3   :  {{ %s2_s2 = spop.drf %2 }}"""
    state = scalar.State()
    for bundle in bundles.parse(text).bundles:
        step = scalar.compile_op(bundle.ops[0])
        assert step is not None
        step(state)
    assert [state.scalars["s1"], state.scalars["s2"]] == popped


def test_a_condition_on_data_gives_two_counts():
    text = LOOP.replace("scmp.eq.s32.totalorder %s3_s1, 0", "scmp.eq.s32.totalorder %s99_s9, 0")
    trace = follow.follow(bundles.parse(text), 0)
    assert (trace.counts[3], trace.low_counts[3]) == (5, 0)
    assert trace.counts[4] == trace.low_counts[4] == 5
    assert not trace.exact


def test_a_loop_whose_bound_is_data_is_said_to_be_unknown():
    trace = follow.follow(bundles.parse(LOOP.replace("%s2_s1, 5", "%s2_s1, %s99_s9")), 0)
    assert [loop.known for loop in trace.loops] == [False]


def test_a_branch_to_nowhere_is_a_broken_dump():
    with pytest.raises(DumpError, match="starts nowhere"):
        follow.follow(bundles.parse(LOOP.replace("$region2", "$region77")), 0)


def test_a_schedule_that_runs_too_long_is_cut_and_said_to_be():
    trace = follow.follow(bundles.parse(LOOP), 0, max_steps=10)
    assert not trace.complete
    assert not trace.exact


def test_a_grid_of_two_by_four_takes_eight_steps_and_moves_each_block_once(recorded):
    """8 steps and 2 of pipeline; the right operand's 4 blocks come once for each of the 2 rows, an output block leaves for each."""
    trace = follow.follow(recorded("tiny").listing, 4)
    assert [loop.trips for loop in trace.loops] == [10]
    runs = [(one.op.mnemonic, one.runs, one.granules * 32) for one in trace.transfers]
    assert runs == [
        ("dma.hbm_to_vmem", 8, 32 * 512 * 2),
        ("dma.hbm_to_vmem", 8, 2 * 512 * 128 * 2),
        ("dma.vmem_to_hbm", 2, 32 * 128 * 2),
    ]
    assert trace.exact


def test_prefetched_operands_decide_which_steps_work_and_which_blocks_are_fetched(recorded):
    listing = recorded("gather").listing
    unknown = follow.follow(listing, 4)
    known = follow.follow(listing, 4, operands={0: [0, 2, 2, 1]})
    assert not unknown.exact
    assert any(one.runs_low < one.runs for one in unknown.transfers)
    assert known.exact
    assert all(one.runs_low == one.runs for one in known.transfers)
    fetched = [one.runs for one in known.transfers if one.op.mnemonic == "dma.hbm_to_vmem"]
    assert fetched == [3]  # block 2 is still there for the third step
    assert sum(known.counts) < sum(unknown.counts)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("%s9_s9 = sadd.s32 4294967295, %s1_s1", 6),
        ("%s9_s9 = sshra.s32 %s2_s2, 1", -4),
        ("%s9_s9 = sshrl.u32 %s2_s2, 28", 15),
        ("%s9_s9 = smul.u32 3, %s1_s1", 21),
        ("%p9_p9 = scmp.lt.u32.totalorder %s2_s2, 5", 0),
        ("%p9_p9 = scmp.lt.s32.totalorder %s2_s2, 5", 1),
        ("%p9_p9 = por %p1_p1, %p8_p8", 1),
        ("%p9_p9 = pnand %p1_p1, %p8_p8", None),
        ("%s9_s9 = scalar_select %p1_p1, 5, 6", 5),
        ("%s9_s9 = scalar_select %p8_p8, 5, 5", 5),
        ("%s9_s9 = smov (!%p1_p1, %s8_s9), 4", None),
        ("%s9_s9 = smov (%p1_p1, %s8_s9), 4", 4),
        ("%s9_s9 = sld [smem:[#allocation4 + %s1_s1]]", 107),
        ("%s9_s9 = sld [smem:[#allocation4 + $0x2]]", 102),
        ("%s9_s9 = sld [smem:[#allocation5_spill]]", 55),
    ],
)
def test_scalar_ops_do_what_the_unit_does(text, value):
    state = scalar.State(
        {"s1": 7, "s2": -7, "p1": 1},
        {"#allocation5_spill": 55},
        arrays={"#allocation4": range(100, 110)},
    )
    op = bundles.parse(f"     0   :  {{ {text} }}").bundles[0].ops[0]
    step = scalar.compile_op(op)
    assert step is not None
    step(state)
    assert state.scalars.get(op.dest) == value


def test_ops_of_a_bundle_read_before_they_write():
    ops = bundles.parse("     0   :  { %s9_s1 = smov 5  ;;  %s8_s2 = smov %s7_s1 }").bundles[0].ops
    assert [op.dest for op in scalar.ordered(ops)] == ["s2", "s1"]


def test_an_op_that_reads_the_very_value_made_beside_it_comes_after():
    ops = bundles.parse("     0   :  { %s8_s2 = smov %s9_s1  ;;  %s9_s1 = smov 5 }").bundles[0].ops
    assert [op.dest for op in scalar.ordered(ops)] == ["s1", "s2"]


def test_a_dma_in_a_region_that_may_be_skipped_is_issued_at_least_no_times():
    text = LOOP.replace("scmp.eq.s32.totalorder %s3_s1, 0", "scmp.eq.s32.totalorder %s99_s9, 0")
    text = text.replace(
        "%10 = sfence", "%10 = dma.hbm_to_vmem /*hbm=*/%s8_s8, /*size_in_granules=*/64, /*vmem=*/%s7_s7"
    )
    (transfer,) = follow.follow(bundles.parse(text), 0).transfers
    assert (transfer.runs, transfer.runs_low, transfer.granules, transfer.granules_low) == (5, 0, 320, 0)


ONE_CORE = """
     0   :  { %s1_s1 = sld [smem:[#allocation0]] /* core id */ }
   0x1   :  { %p1_p1 = scmp.ne.s32.totalorder %s1_s1, 0 }
   0x2   :  { %9 = sbr.rel (%p1_p1) target = $region9 }
   0x3   :  { %10 = dma.hbm_to_vmem /*hbm=*/%s8_s8, /*size_in_granules=*/64, /*vmem=*/%s7_s7 }
"""


def test_a_core_that_has_no_share_leaves_at_once_though_the_end_has_no_bundle():
    listing = bundles.parse(ONE_CORE)
    assert [follow.follow(listing, 0, core=core).counts for core in (0, 1)] == [(1, 1, 1, 1), (1, 1, 1, 0)]
