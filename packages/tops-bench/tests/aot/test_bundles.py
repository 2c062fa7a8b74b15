import pytest

from tops_bench.aot import bundles
from tops_bench.aot.bundles import DumpError

LINE = "0x0   : > {{ {} }} /* Start region 3 */"


def one(op: str) -> bundles.Op:
    return bundles.parse(f"     0   : > {{ {op} }} /* Start region 3 */").bundles[0].ops[0]


def test_a_recorded_dump_gives_every_bundle_and_its_slots(recorded):
    dump = recorded("tiny")
    assert len(dump.listing.bundles) == 139
    assert len(dump.utilization.rows) == 139
    assert dump.utilization.slots[0] == "MXU"
    assert dump.utilization.capacity[0] == 4


def test_an_op_has_its_physical_registers_predicate_and_source_line():
    op = one('%s10_s5 = sadd.s32 (!%p4_p2), 1, %s9_s7 /* loc("a/kernel.py":12:3 to :9) */')
    assert (op.dest, op.mnemonic, op.predicate, op.loc) == ("s5", "sadd.s32", (True, "p2"), ("a/kernel.py", 12))


def test_a_predicate_may_stand_after_the_operands():
    assert one("%s1_s1 = sld [smem:[#allocation4]] (!%p5_p0)").predicate == (True, "p0")


def test_a_brace_in_a_comment_does_not_end_a_bundle():
    listing = bundles.parse("     0   :  { %1 = vst [vmem:[%s1_s1]] /* a } b */  ;;  %2 = vst [vmem:[%s2_s2]] }")
    assert [op.mnemonic for op in listing.bundles[0].ops] == ["vst", "vst"]


def test_a_comment_may_run_over_several_lines():
    listing = bundles.parse("     0   :  { %1 = sfence /* \nhlo: x\n */ }\n   0x1   :  { %2 = sfence }")
    assert len(listing.bundles) == 2


def test_a_branch_names_the_region_it_goes_to():
    assert bundles.branch_target(one("%242 = sbr.rel (%p21_p8) target = $region40")) == 40


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("nothing here", "no bundle found"),
        ("     0   :  { %1 = sfence", "cut short"),
        ("     0   :  { %1 = sfence }\n   0x2   :  { %2 = sfence }", "lines are missing"),
    ],
)
def test_a_broken_dump_says_what_is_wrong_with_it(text, what):
    with pytest.raises(DumpError, match=what):
        bundles.parse(text, "k")


@pytest.mark.parametrize(
    "text", ["", "== CAPACITY:\nA, B\n1 2 3\n== UTILIZATION:\n0 0", "== CAPACITY:\nA, B\n1 2\n== UTILIZATION:\n0 x"]
)
def test_a_broken_table_of_slots_is_refused(text):
    with pytest.raises(DumpError, match="k:"):
        bundles.parse_utilization(text, "k")
