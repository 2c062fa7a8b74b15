import subprocess
import sys
import time
from pathlib import Path

from tops_bench.aot.children import Pool

ECHO = (
    "import sys, json\nfor line in sys.stdin:\n    print(json.dumps({'compiled': json.loads(line)['n']}), flush=True)\n"
)
MOODY = """
import sys, json, os, signal, time
for line in sys.stdin:
    job = json.loads(line)
    match job["do"]:
        case "die": os._exit(3)
        case "killed": os.kill(os.getpid(), signal.SIGKILL)
        case "hang": time.sleep(60)
        case "babble": print("not json", flush=True)
        case "abort": sys.stderr.write("Check failed: no such chip\\n"); sys.stderr.flush(); os.abort()
        case _: print(json.dumps({"compiled": 1}), flush=True)
"""


def pool(tmp_path: Path, script: str, count: int = 2, limit: float = 20.0) -> Pool:
    return Pool("tpu", tmp_path, count, limit, [sys.executable, "-c", script])


def test_answers_come_in_the_order_of_the_jobs(tmp_path):
    answers = pool(tmp_path, ECHO).run([{"n": number} for number in range(7)])
    assert [answer["compiled"] for answer in answers] == list(range(7))


def test_a_child_that_dies_is_one_row_and_the_next_job_gets_a_fresh_one(tmp_path):
    answers = pool(tmp_path, MOODY, count=1).run(
        [{"do": what} for what in ("die", "well", "killed", "well", "babble", "well")]
    )
    assert "exit status 3" in answers[0]["crashed"]
    assert "SIGKILL" in answers[2]["crashed"]
    assert "crashed" in answers[4]
    assert [answers[at] for at in (1, 3, 5)] == [{"compiled": 1}] * 3


def test_a_crash_carries_the_last_words_of_the_compiler(tmp_path):
    assert "no such chip" in pool(tmp_path, MOODY, count=1).run([{"do": "abort"}])[0]["crashed"]


def test_a_hang_ends_at_its_limit(tmp_path):
    started = time.monotonic()
    answers = pool(tmp_path, MOODY, count=1, limit=1.0).run([{"do": "hang"}, {"do": "well"}])
    assert "1 s" in answers[0]["timeout"]
    assert answers[1] == {"compiled": 1}
    assert time.monotonic() - started < 30  # the 60 s of the child were not waited for


def test_done_is_told_of_every_job(tmp_path):
    told = []
    pool(tmp_path, MOODY).run([{"do": "well"}, {"do": "die"}], lambda at, answer: told.append((at, bool(answer))))
    assert sorted(told) == [(0, True), (1, True)]


def test_a_folder_that_cannot_be_made_is_a_fault_that_says_why(tmp_path):
    (tmp_path / "full").write_text("a file where the folder of dumps should be")
    answers = pool(tmp_path / "full", MOODY, count=1).run([{"do": "well"}, {"do": "well"}])
    assert all("Not a directory" in answer["fault"] for answer in answers)


def test_a_worker_ends_when_the_command_that_started_it_is_killed(tmp_path):
    worker = "import os, time; from tops_bench.aot import worker; worker.end_with(os.getppid(), 0.05); print(os.getpid(), flush=True); time.sleep(60)"
    command = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {worker!r}]); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        parent.kill()
    until = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def test_a_program_that_cannot_be_started_is_a_fault_and_no_hang(tmp_path):
    answers = Pool("tpu", tmp_path, 1, 5.0, ["/no/such/program"]).run([{"do": "well"}])
    assert "fault" in answers[0]


def test_source_lines_are_dumped_for_an_explanation_alone(tmp_path):
    echo = "import os, sys, json\nfor _ in sys.stdin: print(json.dumps({'flags': os.environ['LIBTPU_INIT_ARGS']}), flush=True)"
    located = []
    for job in ({}, {"explain": True}):
        [answer] = Pool("tpu", tmp_path, 1, 20.0, (sys.executable, "-c", echo)).run([job])
        located.append("source_annotations=true" in answer["flags"])
    assert located == [False, True]
